"""The files of deploy/: Kubernetes and shells accept them, and each worker gets its rank."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.processes import wait_until

pytestmark = pytest.mark.plain
ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = sorted((ROOT / 'deploy').glob('*.sh'))
FLAGS = ('--num_gpus=8', '--checkpoint_dir=/shared/my runs')

# Stand-ins for programs on PATH, which write each line at once: all tasks write to the same files.
# `python` passes tf_config on to the real one, and notes what main.py would get. CODE_1 is the code
# of the first main.py with rank 1.
STAND_INS = dict(python=f'''
[ "$1" = main.py ] || exec '{sys.executable}' "$@"
rank=${{SLURM_PROCID:-0}}
echo "$TF_CONFIG" >>"$NOTES/tf_configs"
printf '%s;' "$@" | sed 's/$/\\n/' >>"$NOTES/flags"
echo "$$" >>"$NOTES/processes"
case " ${{SIGNALLED-}} " in *" $rank "*) kill -TERM "$PPID"; command -p sleep 0.3 ;; esac
if [ -n "${{WAITS-}}" ]; then
  trap 'command -p sleep 0.3; echo "main.py $rank has left" >>"$NOTES/log"; exit 143' TERM
  while :; do command -p sleep 0.1; done
fi
echo "main.py $rank has left" >>"$NOTES/log"
[ "$(grep -c "main.py $rank has left" "$NOTES/log")" = 1 ] || exit 0
eval "exit \\${{CODE_$rank:-0}}"
''', srun='''
nodes=node7,node8,node9
while :; do
  case $1 in
    --nodelist=*) nodes=${1#*=}; shift ;;
    --*) shift ;;
    *) break ;;
  esac
done
if [ "$1" = true ]; then
  case " ${DOWN-} " in *" $nodes "*) exit 1 ;; *) exit 0 ;; esac
fi
echo "srun $nodes" >>"$NOTES/log"
rank=0 tasks=
for node in $(echo "$nodes" | tr , ' '); do
  (
    SLURM_PROCID=$rank "$@"
    code=$?
    echo "task $rank ended with $code" >>"$NOTES/log"
    exit "$code"
  ) &
  tasks="$tasks $!" rank=$((rank + 1))
done
worst=0
for task in $tasks; do
  wait "$task"
  code=$?
  [ "$code" -le "$worst" ] || worst=$code
done
exit "$worst"
''', scontrol='''
case "$*" in
  'show hostnames node[7-9]') [ -n "${NO_HOSTS-}" ] || printf 'node7\\nnode8\\nnode9\\n' ;;
  'show job 123456') grep -o Requeue=0 "$NOTES/log" ;;
  *) echo "scontrol $*" >>"$NOTES/log" ;;
esac
''', scancel='kill -TERM $(cat "$NOTES/processes")', sleep=':')


@pytest.fixture
def machine(tmp_path):
  """Returns an environment of stand-ins."""
  (tmp_path / 'bin').mkdir()
  for name, text in STAND_INS.items():
    (tmp_path / 'bin' / name).write_text(f'#!/bin/sh\n{text}')
    (tmp_path / 'bin' / name).chmod(0o755)
  kept = {name: value for name, value in os.environ.items()
          if name != 'TF_CONFIG' and not name.startswith('SLURM_')}
  return dict(kept, PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}", NOTES=str(tmp_path))


def read_lines(machine, name):
  path = Path(machine['NOTES']) / name
  return path.read_text().splitlines() if path.exists() else []


def read_log(machine, start=''):
  return [line for line in read_lines(machine, 'log') if line.startswith(start)]


def read_tf_configs(machine):
  """Returns the addresses and the rank of each worker."""
  configs = [json.loads(line) for line in read_lines(machine, 'tf_configs')]
  assert {config['task']['type'] for config in configs} <= {'worker'}
  return sorted((config['cluster']['worker'], config['task']['index']) for config in configs)


@pytest.fixture
def manifest():
  """Returns the documents of the manifest by kind."""
  pytest.importorskip('kubernetes_validate', reason='only the tf2 environment has it')
  import yaml
  documents = list(yaml.safe_load_all((ROOT / 'deploy' / 'kubernetes.yaml').read_text()))
  return {document['kind']: document for document in documents}


def container_of(manifest):
  [container] = manifest['Job']['spec']['template']['spec']['containers']
  return container


def test_the_manifest_is_valid_and_its_names_and_numbers_agree(manifest):
  import kubernetes_validate
  latest = int(kubernetes_validate.latest_version().split('.')[1])
  assert latest > 35
  for minor in range(31, latest + 1):
    for document in manifest.values():
      kubernetes_validate.validate(document, f'1.{minor}', strict=True)
  job, policy, service = (manifest[kind]['spec'] for kind in ('Job', 'NetworkPolicy', 'Service'))
  pod, labels = job['template']['spec'], labels_of(manifest)
  container = container_of(manifest)
  [workers] = [variable['value'] for variable in container['env'] if variable['name'] == 'WORKERS']
  assert job['completions'] == job['parallelism'] == int(workers)
  assert job['completionMode'] == 'Indexed'
  assert pod['subdomain'] == manifest['Service']['metadata']['name']
  assert service['clusterIP'] == 'None' and service['selector'] == labels
  assert pod['restartPolicy'] == 'Never'  # podFailurePolicy needs it.
  [mistake] = [rule for rule in job['podFailurePolicy']['rules'] if 'onExitCodes' in rule]
  assert mistake['action'] == 'FailJob' and mistake['onExitCodes']['values'] == [2]
  volumes = [volume['name'] for volume in pod['volumes']]
  assert sorted(volumes) == sorted(mount['name'] for mount in container['volumeMounts'])
  # Only workers reach a worker, and it reaches them, names and storage.
  assert policy['policyTypes'] == ['Ingress', 'Egress']
  assert policy['podSelector']['matchLabels'] == labels
  workers = [{'podSelector': {'matchLabels': labels}}]
  assert policy['ingress'] == [{'from': workers}]
  to_workers, to_names, to_storage = policy['egress']
  assert to_workers == {'to': workers} and to_storage == {'to': [{'ipBlock': {'cidr': 'STORAGE'}}]}
  assert to_names['ports'] == [dict(protocol=name, port=53) for name in ('UDP', 'TCP')]
  assert [list(peer) for peer in to_names['to']] == [['namespaceSelector']]


def labels_of(manifest):
  """Returns the label that Kubernetes gives the pods of the Job, and those of no other."""
  assert 'metadata' not in manifest['Job']['spec']['template']
  return {'batch.kubernetes.io/job-name': manifest['Job']['metadata']['name']}


def test_another_run_has_another_name_selector_folder_and_token(manifest):
  import yaml
  text = (ROOT / 'deploy' / 'kubernetes.yaml').read_text()
  [command] = re.findall(r'sed (s/\S+/g) deploy', text)
  renamed = subprocess.run(['sed', command], input=text, stdout=subprocess.PIPE, text=True,
                           check=True, timeout=60).stdout
  other = {document['kind']: document for document in yaml.safe_load_all(renamed)}
  name, other_name = (one['Job']['metadata']['name'] for one in (manifest, other))
  assert name != other_name and name not in renamed
  assert renamed.replace(other_name, name) == text.replace(other_name, name)
  for kind in manifest:
    assert other[kind]['metadata']['name'] == other_name
  assert other['Service']['spec']['selector'] == labels_of(other)


def test_a_pod_takes_no_more_of_its_node_than_it_says(manifest):
  pod, container = manifest['Job']['spec']['template']['spec'], container_of(manifest)
  limits, requests = (container['resources'][name] for name in ('limits', 'requests'))
  assert set(requests) == {'cpu', 'memory'} and requests.items() <= limits.items()
  for volume in pod['volumes']:
    assert 'emptyDir' not in volume or volume['emptyDir']['sizeLimit'].endswith('Gi')


def test_a_pod_has_no_rights_and_writes_to_volumes_alone(manifest):
  pod = manifest['Job']['spec']['template']['spec']
  container = container_of(manifest)
  assert pod['securityContext']['runAsNonRoot'] and pod['securityContext']['runAsUser'] > 0
  assert pod['securityContext']['seccompProfile'] == {'type': 'RuntimeDefault'}
  assert pod['automountServiceAccountToken'] is False
  rights = container['securityContext']
  assert rights == dict(allowPrivilegeEscalation=False, privileged=False,
                        readOnlyRootFilesystem=True, capabilities={'drop': ['ALL']})
  # The user has no home; the caches of towers and TensorFlow's temporary files need a place.
  writable = [mount['mountPath'] for mount in container['volumeMounts']
              if not mount.get('readOnly')]
  environment = {one['name']: one.get('value') for one in container['env']}
  assert environment['HOME'] in writable and '/tmp' in writable
  for mount in container['volumeMounts']:
    [volume] = [volume for volume in pod['volumes'] if volume['name'] == mount['name']]
    assert ('emptyDir' in volume) == (mount['mountPath'] != '/checkpoints')
  assert not any(pod.get(name) for name in ('hostNetwork', 'hostPID', 'hostIPC'))


def test_every_pod_gets_its_rank(manifest, machine):
  job, container = manifest['Job'], container_of(manifest)
  [port] = [port['containerPort'] for port in container['ports']]
  hosts = [f"{job['metadata']['name']}-{index}.{manifest['Service']['metadata']['name']}:{port}"
           for index in range(job['spec']['completions'])]
  environment = dict(machine, **{one['name']: one['value'] for one in container['env']
                                 if 'value' in one})
  # One too many: a pod without a TF_CONFIG trains nothing.
  *pods, last = [subprocess.Popen(container['command'], cwd=str(ROOT), stderr=subprocess.DEVNULL,
                                  env=dict(environment, JOB_COMPLETION_INDEX=str(index)))
                 for index in range(len(hosts) + 1)]
  assert [pod.wait(timeout=60) for pod in pods] == [0] * len(hosts) and last.wait(timeout=60) == 2
  # Kubernetes signals the first process of the container, which is main.py itself.
  assert sorted(map(int, read_lines(machine, 'processes'))) == sorted(pod.pid for pod in pods)
  assert read_tf_configs(machine) == [(hosts, index) for index in range(len(hosts))]
  gpus = container['resources']['limits']['nvidia.com/gpu']
  for line in read_lines(machine, 'flags'):
    assert f';--num_gpus={gpus};' in line and ';--checkpoint_dir=/checkpoints/' in line


@pytest.mark.parametrize('script', SCRIPTS, ids=lambda script: script.name)
def test_shells_and_linters_take_the_script(script):
  subprocess.run(['bash', '-n', str(script)], check=True, timeout=60)
  if shutil.which('shellcheck'):
    subprocess.run(['shellcheck', str(script)], check=True, timeout=60)


@pytest.fixture
def submit(machine):
  """Returns a function that runs a script on three nodes, and returns its exit code."""
  def run(name, *flags, stops_when=None, **environment):
    environment = dict(machine, SLURM_JOB_ID='123456', SLURM_JOB_NODELIST='node[7-9]',
                       **environment)
    job = subprocess.Popen(['bash', f'deploy/{name}.sh', *flags], cwd=str(ROOT), env=environment,
                           stderr=subprocess.DEVNULL)
    try:
      if stops_when:
        wait_until(stops_when)
        job.terminate()
      return job.wait(timeout=60)
    finally:
      job.kill()
  return run


both = pytest.mark.parametrize('name', ['slurm', 'slurm_elastic'])


@both
def test_every_task_gets_its_rank(name, submit, machine):
  assert submit(name, *FLAGS) == 0
  hosts = ['node7:23456', 'node8:23456', 'node9:23456']
  assert read_tf_configs(machine) == [(hosts, index) for index in range(3)]
  assert read_lines(machine, 'flags') == [';'.join(['main.py', *FLAGS, ''])] * 3
  assert read_log(machine, 's') == ['srun node7,node8,node9']


def test_a_task_that_fails_restarts_all_up_to_a_limit(submit, machine):
  assert submit('slurm', CODE_1='3') == 3
  assert read_log(machine, 'scontrol') == ['scontrol requeue 123456']
  [most] = re.findall(r'^most_restarts=(\d+)$', (ROOT / 'deploy' / 'slurm.sh').read_text(),
                      re.MULTILINE)
  (Path(machine['NOTES']) / 'log').unlink()
  assert submit('slurm', CODE_1='3', SLURM_RESTART_COUNT=most) == 3
  assert not read_log(machine, 'scontrol')


@pytest.mark.parametrize('down, steps', [
    ('', ['node7,node8,node9'] * 2), ('node8', ['node7,node8,node9', 'node7,node9']),
    ('node8 node9', ['node7,node8,node9'])])
def test_a_lost_node_leaves_the_elastic_job_training_on_those_left(down, steps, submit, machine):
  has_enough = len(steps) == 2
  assert submit('slurm_elastic', CODE_1='75', DOWN=down) == (0 if has_enough else 75)
  assert read_log(machine, 'srun') == [f'srun {nodes}' for nodes in steps]
  if down == 'node8':
    assert read_tf_configs(machine)[-2:] == [
        (['node7:23456', 'node9:23456'], index) for index in range(2)]
  assert read_log(machine, 'scontrol') == ['scontrol requeue 123456'] * (not has_enough)


@pytest.mark.parametrize('name, mistake, code', [
    # Another one that ends with a higher code, since one is gone, does not hide it.
    ('slurm', dict(CODE_1='2', CODE_2='75'), 75),
    ('slurm_elastic', dict(CODE_1='2', CODE_2='75'), 75),
    # There is no TF_CONFIG without hosts, and main.py does not start.
    ('slurm', dict(NO_HOSTS='1'), 2)])
def test_a_mistake_forbids_a_restart_before_the_task_ends(name, mistake, code, submit, machine):
  assert submit(name, **mistake) == code
  log = read_log(machine)
  assert log.index('scontrol update JobId=123456 Requeue=0') < log.index('task 1 ended with 2')
  assert len(read_log(machine, 'srun')) == 1


def test_at_the_time_limit_shells_wait_and_the_chief_reports_for_all(submit, machine):
  assert submit('slurm', SIGNALLED='0 1 2', CODE_0='143', CODE_1='143', CODE_2='143') == 143
  *log, requeue = [line for line in read_log(machine) if not line.startswith('srun')]
  assert sorted(log) == [*(f'main.py {rank} has left' for rank in range(3)),
                         *(f'task {rank} ended with {0 if rank else 143}' for rank in range(3))]
  assert all(log.index(f'main.py {rank} has left') < log.index(line)
             for rank in range(3) for line in log if line.startswith(f'task {rank}'))
  assert requeue == 'scontrol requeue 123456'


@pytest.mark.nightly(but='0')
@pytest.mark.parametrize('restarts', ['0', '20'])
def test_at_the_time_limit_all_workers_of_the_elastic_job_leave_and_it_is_requeued(
    restarts, submit, machine):
  assert submit('slurm_elastic', WAITS='1', SLURM_RESTART_COUNT=restarts,
                stops_when=lambda: len(read_lines(machine, 'processes')) == 3) == 143
  log = [line for line in read_log(machine) if not line.startswith('task')]
  assert log[0].startswith('srun') and all(line.endswith('has left') for line in log[1:4])
  assert log[4:] == ['scontrol requeue 123456'] * (restarts == '0')
