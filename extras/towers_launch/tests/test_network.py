"""The launcher's own network: nobody outside reaches it, and all else is as without it."""

import os
import signal
import socket
import sys

import pytest

from launcher import SLEEP
from tests.harness.processes import clean_environment, run_python
from towers_launch import network

pytestmark = pytest.mark.plain

has_namespaces = pytest.mark.skipif(network.find_obstacle(network.enter_network) is not None,
                                    reason='needs namespaces of users or networks')
# Listens, and connects to the other worker.
MEET = '''
import socket
port = int(json.loads(os.environ['TF_CONFIG'])['cluster']['worker'][worker].split(':')[1])
listener = socket.socket()
listener.bind(('', port))
listener.listen()
note('ports', port)
wait_for('ports')
while len(open(os.path.join(os.environ['NOTES'], 'ports')).read().split()) < 2:
  time.sleep(0.01)
for line in open(os.path.join(os.environ['NOTES'], 'ports')):
  socket.create_connection(('127.0.0.1', int(line)), 10).close()
note('apart', bool(os.environ.get('TOWERS_APART')))
note('tokens', os.environ['TOWERS_TOKEN'])
note('facts', '%s %s %s' % (socket.if_nameindex(), os.geteuid(), os.getegid()))
'''


def can_connect(port):
  try:
    socket.create_connection(('127.0.0.1', port), 5).close()
  except OSError:
    return False
  return True


@pytest.mark.nightly(but='open')
@pytest.mark.parametrize('name', [
    'open', *(pytest.param(name, marks=has_namespaces) for name in ('auto', 'loopback'))])
def test_only_the_workers_reach_each_other_in_a_network_of_their_own(name, start):
  launcher = start(MEET + SLEEP, '--workers=2', f'--network={name}')
  launcher.wait_for('facts', 2)
  assert [can_connect(int(port)) for port in launcher.notes('ports')] == [name == 'open'] * 2
  assert launcher.notes('apart') == [str(name != 'open')] * 2
  [token] = set(launcher.notes('tokens'))
  assert len(token) == 32
  for facts in launcher.notes('facts'):
    assert facts.endswith(f' {os.geteuid()} {os.getegid()}')
    assert name == 'open' or facts.startswith("[(1, 'lo')]")
  note = os.stat(str(launcher.folder / 'facts'))
  assert (note.st_uid, note.st_gid) == (os.geteuid(), os.getegid())
  launcher.process.send_signal(signal.SIGTERM)
  assert launcher.end() == 143 and 'launch: worker 0 was killed by SIGTERM' in launcher.said()
  told = [line for line in launcher.said() if 'a network of their own' in line]
  assert len(told) == (name != 'open')
  assert name == 'open' or 'reach nothing outside (--network=open)' in told[0]


# A kernel that refuses at one of the steps, each as another one does.
REFUSED = '''
import sys
import tests  # Finds towers_launch.
from towers import extras
from towers_launch import network
def refuse(*_):
  raise OSError(1, 'Operation not permitted', 'unshare')
network.%s = refuse
sys.exit(extras.run('python -m towers launch', sys.argv[1:]))
'''


@pytest.mark.nightly(but=['loopback-2-_unshare', 'loopback-2-_bring_loopback_up'])
@pytest.mark.parametrize('step', ['_unshare', '_bring_loopback_up'])
@pytest.mark.parametrize('name, code', [('auto', 0), ('loopback', 2), ('open', 0)])
def test_a_kernel_that_refuses_is_named_and_auto_goes_on(step, name, code):
  done = run_python('-c', REFUSED % step, '--workers=1', f'--network={name}', '--', sys.executable,
                    '-c', 'import socket; print(len(socket.if_nameindex()))',
                    env=clean_environment())
  assert done.returncode == code
  assert done.stdout == ('' if code else f'worker 0 │ {len(socket.if_nameindex())}\n')
  said = done.stderr.splitlines()
  assert len(said) == (name != 'open')
  if said:
    assert f'--network={name}: ' in said[0] and 'unshare: Operation not permitted' in said[0]
    assert 'Start as root' in said[0] and 'user.max_user_namespaces' in said[0]
    assert said[0].startswith('towers: error: ') == bool(code)
    assert ('can connect to their servers' in said[0]) == (name == 'auto')
