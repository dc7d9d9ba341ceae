"""The files of deploy/: Kubernetes and shells accept them, and each worker gets its rank."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SLURM, SLURM_ELASTIC = ROOT / 'deploy' / 'slurm.sh', ROOT / 'deploy' / 'slurm_elastic.sh'

# Stands in for `python` on PATH: passes tf_config on to the real one, and notes what main.py would
# get. It writes each line at once, since all pods write to the same files.
PYTHON = f'''#!/bin/sh
[ "$1" = main.py ] || exec '{sys.executable}' "$@"
echo "$TF_CONFIG" >>"$NOTES/tf_configs"
flags=$(printf '%s;' "$@")
echo "$flags" >>"$NOTES/flags"
echo "$$" >>"$NOTES/processes"
rank=${{SLURM_PROCID:-0}}
case " ${{SIGNALLED-}} " in *" $rank "*) kill -TERM "$PPID"; sleep 0.3 ;; esac
echo "main.py $rank has left" >>"$NOTES/log"
if [ -n "${{WAITS-}}" ]; then
  trap 'exit 143' TERM
  while :; do command -p sleep 0.1; done
fi
eval "exit \\${{CODE_$rank:-0}}"
'''
# Runs three tasks, one after the other; the exit code is the highest, as that of srun.
SRUN = '''#!/bin/sh
while :; do
  case $1 in
    --*) echo "srun $1" >>"$NOTES/log"; shift ;;
    *) break ;;
  esac
done
worst=0
for rank in 0 1 2; do
  SLURM_PROCID=$rank "$@"
  code=$?
  echo "task $rank ended with $code" >>"$NOTES/log"
  [ "$code" -le "$worst" ] || worst=$code
done
exit "$worst"
'''
# Runs one step on one node, which fails at once as often as FAILS has its name.
SRUN_ON_NODE = '''#!/bin/sh
while :; do
  case $1 in
    --nodelist=*) node=${1#*=}; shift ;;
    --*) shift ;;
    *) break ;;
  esac
done
echo "srun $node" >>"$NOTES/log"
[ "$(printf '%s\\n' ${FAILS-} | grep -c "$node")" -lt "$(grep -c "srun $node" "$NOTES/log")" ] ||
  exit 1
exec "$@"
'''
SCONTROL = '''#!/bin/sh
case "$*" in
  'show hostnames node[7-9]') echo node7; echo node8; echo node9 ;;
  *) echo "scontrol $*" >>"$NOTES/log" ;;
esac
'''


def install(folder, **programs):
  for name, text in programs.items():
    (folder / 'bin' / name).write_text(text)
    (folder / 'bin' / name).chmod(0o755)


@pytest.fixture
def machine(tmp_path):
  """Returns an environment in which python, srun and scontrol are stand-ins."""
  (tmp_path / 'bin').mkdir()
  install(tmp_path, python=PYTHON, srun=SRUN, scontrol=SCONTROL)
  kept = {name: value for name, value in os.environ.items()
          if name != 'TF_CONFIG' and not name.startswith('SLURM_')}
  return dict(kept, PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}", NOTES=str(tmp_path))


def read_lines(machine, name):
  path = Path(machine['NOTES']) / name
  return path.read_text().splitlines() if path.exists() else []


def read_log(machine, start=''):
  return [line for line in read_lines(machine, 'log') if line.startswith(start)]


def tf_config(hosts, index):
  return {'cluster': {'worker': hosts}, 'task': {'type': 'worker', 'index': index}}


@pytest.fixture(params=['kubernetes', 'kubernetes_elastic'])
def any_manifest(request):
  return read_manifest(request.param)


def read_manifest(name):
  """Returns the documents of a manifest by kind."""
  pytest.importorskip('kubernetes_validate', reason='only the tf2 environment has it')
  import yaml
  documents = list(yaml.safe_load_all((ROOT / 'deploy' / f'{name}.yaml').read_text()))
  assert len({document['kind'] for document in documents}) == len(documents)
  return {document['kind']: document for document in documents}


def test_the_manifest_is_valid_for_kubernetes(any_manifest):
  import kubernetes_validate
  latest = int(kubernetes_validate.latest_version().split('.')[1])
  versions = [f'1.{minor}' for minor in range(31, latest + 1)]
  assert len(versions) > 5
  for version in versions:
    for document in any_manifest.values():
      kubernetes_validate.validate(document, version, strict=True)


def test_names_labels_and_numbers_of_the_manifest_agree(any_manifest):
  job, policy = any_manifest['Job']['spec'], any_manifest['NetworkPolicy']['spec']
  pod, labels = job['template']['spec'], job['template']['metadata']['labels']
  [container] = pod['containers']
  [workers] = [variable['value'] for variable in container['env'] if variable['name'] == 'WORKERS']
  service = any_manifest.get('Service')
  assert job['completions'] == job['parallelism'] == int(workers)
  assert job['completionMode'] == 'Indexed'
  if service:
    assert pod['subdomain'] == service['metadata']['name']
    assert service['spec']['clusterIP'] == 'None' and service['spec']['selector'] == labels
  [allowed] = policy['ingress'][0]['from']
  assert policy['podSelector']['matchLabels'] == allowed['podSelector']['matchLabels'] == labels
  assert pod['restartPolicy'] == 'Never'  # podFailurePolicy needs it.
  [mistake] = [rule for rule in job['podFailurePolicy']['rules'] if 'onExitCodes' in rule]
  assert mistake['action'] == 'FailJob' and mistake['onExitCodes']['values'] == [2]
  volumes = [volume['name'] for volume in pod['volumes']]
  assert sorted(volumes) == sorted(mount['name'] for mount in container['volumeMounts'])


def test_a_pod_has_no_rights_and_writes_to_volumes_alone(any_manifest):
  pod = any_manifest['Job']['spec']['template']['spec']
  [container] = pod['containers']
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


def test_only_workers_reach_the_port_of_a_worker(any_manifest):
  policy = any_manifest['NetworkPolicy']['spec']
  [container] = any_manifest['Job']['spec']['template']['spec']['containers']
  assert policy['policyTypes'] == ['Ingress'] and len(policy['ingress']) == 1
  [sender] = policy['ingress'][0]['from']
  assert list(sender) == ['podSelector'] and sender['podSelector']['matchLabels']
  # Agents choose others for each round.
  ports = [port['containerPort'] for port in container.get('ports', [])]
  assert ports == ([2222] if 'Service' in any_manifest else [])
  assert 'ports' not in policy['ingress'][0]


def test_every_pod_gets_its_rank(machine):
  manifest = read_manifest('kubernetes')
  job = manifest['Job']
  [container] = job['spec']['template']['spec']['containers']
  [port] = [port['containerPort'] for port in container['ports']]
  hosts = [f"{job['metadata']['name']}-{index}.{manifest['Service']['metadata']['name']}:{port}"
           for index in range(job['spec']['completions'])]
  environment = dict(machine, **{one['name']: one['value'] for one in container['env']})
  pods = [subprocess.Popen(container['command'], cwd=str(ROOT),
                           env=dict(environment, JOB_COMPLETION_INDEX=str(index)))
          for index in range(len(hosts))]
  assert [pod.wait(timeout=60) for pod in pods] == [0] * len(hosts)
  # Kubernetes signals the first process of the container, which is main.py itself.
  assert sorted(map(int, read_lines(machine, 'processes'))) == sorted(pod.pid for pod in pods)
  tf_configs = [json.loads(line) for line in read_lines(machine, 'tf_configs')]
  assert sorted(tf_configs, key=lambda config: config['task']['index']) == [
      tf_config(hosts, index) for index in range(len(hosts))]
  gpus = container['resources']['limits']['nvidia.com/gpu']
  [folder] = [mount['mountPath'] for mount in container['volumeMounts']
              if mount['name'] == 'checkpoints']
  for line in read_lines(machine, 'flags'):
    assert f';--num_gpus={gpus};' in line and f';--checkpoint_dir={folder}/' in line


def test_a_pod_without_a_tf_config_trains_nothing(machine):
  [container] = read_manifest('kubernetes')['Job']['spec']['template']['spec']['containers']
  done = subprocess.run(container['command'], cwd=str(ROOT), timeout=60, stderr=subprocess.DEVNULL,
                        env=dict(machine, JOB_COMPLETION_INDEX='4', WORKERS='4'))
  assert done.returncode == 2 and not read_lines(machine, 'flags')


def run_slurm(machine, *flags, **environment):
  environment = dict(machine, SLURM_JOB_ID='123456', SLURM_JOB_NODELIST='node[7-9]', **environment)
  return subprocess.run(['bash', str(SLURM)] + list(flags), cwd=str(ROOT), env=environment,
                        stderr=subprocess.DEVNULL, timeout=60).returncode


@pytest.mark.parametrize('script', [SLURM, SLURM_ELASTIC])
def test_shells_and_linters_take_the_script(script):
  subprocess.run(['bash', '-n', str(script)], check=True, timeout=60)
  if shutil.which('shellcheck'):
    subprocess.run(['shellcheck', str(script)], check=True, timeout=60)


def test_every_task_gets_its_rank(machine):
  assert run_slurm(machine, '--num_gpus=8', '--checkpoint_dir=/shared/my runs') == 0
  hosts = ['node7:23456', 'node8:23456', 'node9:23456']
  tf_configs = [json.loads(line) for line in read_lines(machine, 'tf_configs')]
  assert tf_configs == [tf_config(hosts, index) for index in range(3)]
  flags = 'main.py;--num_gpus=8;--checkpoint_dir=/shared/my runs;'
  assert read_lines(machine, 'flags') == [flags] * 3
  assert read_log(machine, 's') == ['srun --kill-on-bad-exit=1', 'srun --wait=0']


def test_a_task_that_fails_restarts_all(machine):
  assert run_slurm(machine, CODE_1='3') == 3
  assert read_log(machine, 'scontrol') == ['scontrol requeue 123456']


def test_restarts_have_a_limit(machine):
  [most] = re.findall(r'^most_restarts=(\d+)$', SLURM.read_text(), re.MULTILINE)
  assert run_slurm(machine, CODE_1='3', SLURM_RESTART_COUNT=most) == 3
  assert not read_log(machine, 'scontrol')


@pytest.mark.parametrize('has_hosts', [True, False])
def test_a_mistake_forbids_a_restart_before_the_task_ends(machine, has_hosts):
  if has_hosts:
    machine['CODE_1'] = '2'
  else:  # There is no TF_CONFIG then, and main.py does not start.
    install(Path(machine['NOTES']), scontrol='#!/bin/sh\necho "scontrol $*" >>"$NOTES/log"\n')
  assert run_slurm(machine) == 2
  log = read_log(machine)
  index = next(index for index, line in enumerate(log) if line.endswith('ended with 2'))
  assert log[index - 1] == 'scontrol update JobId=123456 Requeue=0'


def test_at_the_time_limit_shells_wait_and_the_chief_reports_for_all(machine):
  assert run_slurm(machine, SIGNALLED='0 1 2', CODE_0='143', CODE_1='143', CODE_2='143') == 143
  assert [line for line in read_log(machine) if not line.startswith('srun')] == [
      'main.py 0 has left', 'task 0 ended with 143',
      'main.py 1 has left', 'task 1 ended with 0',
      'main.py 2 has left', 'task 2 ended with 0',
      'scontrol requeue 123456']


def test_every_pod_of_the_elastic_manifest_takes_part_in_one_round(machine, tmp_path):
  job = read_manifest('kubernetes_elastic')['Job']['spec']
  [container] = job['template']['spec']['containers']
  command = [word.replace('/checkpoints', str(tmp_path)) for word in container['command']]
  variables = {one['name']: one.get('value') for one in container['env']}
  assert job['successPolicy'] == {'rules': [{'succeededCount': 1}]}
  assert 1 <= int(variables['MIN_WORKERS']) < int(variables['WORKERS'])
  paths = {one['name']: one['valueFrom']['fieldRef']['fieldPath'] for one in container['env']
           if 'valueFrom' in one}
  assert paths == {'POD_IP': 'status.podIP',
                   'JOB_UID': "metadata.labels['batch.kubernetes.io/controller-uid']"}
  variables.update(POD_IP='10.0.0.1', JOB_UID='4711')
  pods = [subprocess.Popen(command, cwd=str(ROOT), stderr=subprocess.DEVNULL,
                           env=dict(machine, JOB_COMPLETION_INDEX=str(index), **variables))
          for index in range(job['completions'])]
  assert [pod.wait(timeout=60) for pod in pods] == [0] * len(pods)
  tf_configs = [json.loads(line) for line in read_lines(machine, 'tf_configs')]
  assert sorted(config['task']['index'] for config in tf_configs) == list(range(len(pods)))
  [workers] = {tuple(config['cluster']['worker']) for config in tf_configs}
  assert len(workers) == len(pods)
  gpus = container['resources']['limits']['nvidia.com/gpu']
  for line in read_lines(machine, 'flags'):
    assert f';--num_gpus={gpus};' in line and f';--checkpoint_dir={tmp_path}/towers;' in line


@pytest.fixture
def nodes(machine, tmp_path):
  """Returns a function that runs the elastic script on three nodes, and returns its exit code."""
  install(tmp_path, srun=SRUN_ON_NODE, sleep='#!/bin/sh\necho sleep >>"$NOTES/log"\n')

  def run(*flags, stops_when=None, **environment):
    environment = dict(machine, SLURM_JOB_ID='123456', SLURM_JOB_NODELIST='node[7-9]',
                       PYTHONPATH=str(ROOT), **environment)
    job = subprocess.Popen(['bash', str(SLURM_ELASTIC)] + list(flags), cwd=str(tmp_path),
                           env=environment, stderr=subprocess.DEVNULL)
    try:
      if stops_when:
        while not stops_when():
          time.sleep(0.05)
        job.terminate()
      return job.wait(timeout=60)
    finally:
      job.kill()
  return run


def test_every_node_takes_part_also_one_that_fails_at_first(nodes, machine):
  assert nodes('--num_gpus=8', '--checkpoint_dir=/shared/my runs', FAILS='node8 node8') == 0
  assert sorted(read_log(machine, 'srun')) == ['srun node7', *['srun node8'] * 3, 'srun node9']
  tf_configs = [json.loads(line) for line in read_lines(machine, 'tf_configs')]
  [workers] = {tuple(config['cluster']['worker']) for config in tf_configs}
  assert [worker.partition(':')[0] for worker in workers] == ['node7', 'node8', 'node9']
  flags = 'main.py;--num_gpus=8;--checkpoint_dir=/shared/my runs;'
  assert read_lines(machine, 'flags') == [flags] * 3
  assert not read_log(machine, 'scontrol')


def test_a_mistake_ends_the_elastic_job_and_nothing_restarts(nodes, machine):
  assert nodes(CODE_0='2') == 2
  assert not read_log(machine, 'scontrol') and not read_log(machine, 'sleep')


@pytest.mark.nightly(but='0')
@pytest.mark.parametrize('restarts', ['0', '20'])
def test_at_the_time_limit_all_workers_of_the_elastic_job_leave_and_it_is_requeued(
    restarts, nodes, machine):
  assert nodes(WAITS='1', SLURM_RESTART_COUNT=restarts,
               stops_when=lambda: len(read_log(machine, 'main.py')) == 3) == 143
  assert read_log(machine, 'scontrol') == ['scontrol requeue 123456'] * (restarts == '0')
