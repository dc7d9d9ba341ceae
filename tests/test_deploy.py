"""The files of deploy/: Kubernetes and shells accept them, and each worker gets its rank."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MANIFEST = ROOT / 'deploy' / 'kubernetes.yaml'
SLURM = ROOT / 'deploy' / 'slurm.sh'

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
SCONTROL = '''#!/bin/sh
case "$*" in
  'show hostnames node[7-9]') echo node7; echo node8; echo node9 ;;
  *) echo "scontrol $*" >>"$NOTES/log" ;;
esac
'''


@pytest.fixture
def machine(tmp_path):
  """Returns an environment in which python, srun and scontrol are stand-ins."""
  (tmp_path / 'bin').mkdir()
  for name, text in (('python', PYTHON), ('srun', SRUN), ('scontrol', SCONTROL)):
    (tmp_path / 'bin' / name).write_text(text)
    (tmp_path / 'bin' / name).chmod(0o755)
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


@pytest.fixture
def manifest():
  """Returns the manifest's documents by kind."""
  pytest.importorskip('kubernetes_validate', reason='only the tf2 environment has it')
  import yaml
  documents = list(yaml.safe_load_all(MANIFEST.read_text()))
  assert len({document['kind'] for document in documents}) == len(documents)
  return {document['kind']: document for document in documents}


def test_the_manifest_is_valid_for_kubernetes(manifest):
  import kubernetes_validate
  latest = int(kubernetes_validate.latest_version().split('.')[1])
  versions = [f'1.{minor}' for minor in range(31, latest + 1)]
  assert len(versions) > 5
  for version in versions:
    for document in manifest.values():
      kubernetes_validate.validate(document, version, strict=True)


def test_names_labels_and_numbers_of_the_manifest_agree(manifest):
  job, service = manifest['Job']['spec'], manifest['Service']
  policy = manifest['NetworkPolicy']['spec']
  pod, labels = job['template']['spec'], job['template']['metadata']['labels']
  [container] = pod['containers']
  [workers] = [variable['value'] for variable in container['env'] if variable['name'] == 'WORKERS']
  assert job['completions'] == job['parallelism'] == int(workers)
  assert job['completionMode'] == 'Indexed'
  assert pod['subdomain'] == service['metadata']['name'] and service['spec']['clusterIP'] == 'None'
  [allowed] = policy['ingress'][0]['from']
  assert service['spec']['selector'] == labels
  assert policy['podSelector']['matchLabels'] == allowed['podSelector']['matchLabels'] == labels
  assert pod['restartPolicy'] == 'Never'  # podFailurePolicy needs it.
  [mistake] = [rule for rule in job['podFailurePolicy']['rules'] if 'onExitCodes' in rule]
  assert mistake['action'] == 'FailJob' and mistake['onExitCodes']['values'] == [2]
  volumes = [volume['name'] for volume in pod['volumes']]
  assert sorted(volumes) == sorted(mount['name'] for mount in container['volumeMounts'])


def test_a_pod_has_no_rights_and_writes_to_volumes_alone(manifest):
  pod = manifest['Job']['spec']['template']['spec']
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
  environment = {one['name']: one['value'] for one in container['env']}
  assert environment['HOME'] in writable and '/tmp' in writable
  for mount in container['volumeMounts']:
    [volume] = [volume for volume in pod['volumes'] if volume['name'] == mount['name']]
    assert ('emptyDir' in volume) == (mount['mountPath'] != '/checkpoints')
  assert not any(pod.get(name) for name in ('hostNetwork', 'hostPID', 'hostIPC'))


def test_only_workers_reach_the_port_of_a_worker(manifest):
  policy = manifest['NetworkPolicy']['spec']
  [container] = manifest['Job']['spec']['template']['spec']['containers']
  assert policy['policyTypes'] == ['Ingress'] and len(policy['ingress']) == 1
  [sender] = policy['ingress'][0]['from']
  assert list(sender) == ['podSelector'] and sender['podSelector']['matchLabels']
  assert [port['containerPort'] for port in container['ports']] == [2222]


def test_every_pod_gets_its_rank(manifest, machine):
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


def test_a_pod_without_a_tf_config_trains_nothing(manifest, machine):
  [container] = manifest['Job']['spec']['template']['spec']['containers']
  done = subprocess.run(container['command'], cwd=str(ROOT), timeout=60, stderr=subprocess.DEVNULL,
                        env=dict(machine, JOB_COMPLETION_INDEX='4', WORKERS='4'))
  assert done.returncode == 2 and not read_lines(machine, 'flags')


def run_slurm(machine, *flags, **environment):
  environment = dict(machine, SLURM_JOB_ID='123456', SLURM_JOB_NODELIST='node[7-9]', **environment)
  return subprocess.run(['bash', str(SLURM)] + list(flags), cwd=str(ROOT), env=environment,
                        stderr=subprocess.DEVNULL, timeout=60).returncode


def test_shells_and_linters_take_the_script():
  subprocess.run(['bash', '-n', str(SLURM)], check=True, timeout=60)
  if shutil.which('shellcheck'):
    subprocess.run(['shellcheck', str(SLURM)], check=True, timeout=60)


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


@pytest.mark.parametrize('environment', [dict(CODE_1='2'), dict(SLURM_JOB_NODELIST='nodes')])
def test_a_mistake_forbids_a_restart_before_the_task_ends(machine, environment):
  machine.update({name: value for name, value in environment.items() if name.startswith('CODE')})
  # Without hosts there is no TF_CONFIG, and main.py does not start.
  if 'SLURM_JOB_NODELIST' in environment:
    (Path(machine['NOTES']) / 'bin' / 'scontrol').write_text(
        '#!/bin/sh\necho "scontrol $*" >>"$NOTES/log"\n')
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
