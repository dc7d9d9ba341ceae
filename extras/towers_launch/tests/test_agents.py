"""Agents as processes, whose workers train nothing."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from launcher import SLEEP, Notes
from tests import ROOT
from tests.harness.processes import clean_environment, is_alive, wait_until
from towers.base.usage_error import UsageError
from towers_launch import agent as agents
from towers_launch.agreement import STARTED, Card, Lineup
from towers_launch.meeting import Meeting, write_once

WORKERS, LEAST = 3, 2
FLAGS = [f'--workers={WORKERS}', f'--min_workers={LEAST}', '--host=127.0.0.1',
         '--lease_seconds=3', '--retry_seconds=inf']


class Agents(Notes):
  """The agents of one meeting, by place."""

  def __init__(self, folder, child):
    super().__init__(folder, child)
    self.running, self.all = {}, []

  def start(self, *indices, flags=(), **environment):
    for index in indices:
      self.running[index] = subprocess.Popen(
          [sys.executable, '-m', 'towers.launch.agent', f'--folder={self.folder}/meeting',
           f'--index={index}', *FLAGS, *flags, '--', sys.executable,
           str(self.folder / 'child.py')], cwd=ROOT, stdout=subprocess.DEVNULL,
          stderr=subprocess.PIPE, env=clean_environment(NOTES=str(self.folder), **environment))
      self.all.append(self.running[index])

  def end(self):
    """Returns the exit codes by place."""
    self.said = {index: process.communicate(timeout=60)[1].decode()
                 for index, process in self.running.items()}
    assert not any('Traceback' in text for text in self.said.values()), self.said
    return [self.running[index].returncode for index in sorted(self.running)]


@pytest.fixture
def meet(tmp_path):
  teams = []

  def make(child):
    teams.append(Agents(tmp_path, child))
    return teams[-1]

  yield make
  for process in teams[0].all:
    process.kill()
    process.communicate()


# Each worker notes the size of its round, ends with 75 when another of its round has ended, and
# with 143 when it gets SIGTERM.
ROUND = '''
config = json.loads(os.environ['TF_CONFIG'])
addresses = config['cluster']['worker']
count = len(addresses)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
mark = os.path.join(os.environ['NOTES'], addresses[0])
with open(f'{mark}.{worker}', 'w') as file:
  file.write(str(os.getpid()))
note('sizes', count)
def others_are_there():
  for rank in range(count):
    try:
      os.kill(int(open(f'{mark}.{rank}').read() or os.getpid()), 0)
    except FileNotFoundError:
      pass
    except ProcessLookupError:
      return False
  return True
def wait_long():
  while others_are_there():
    time.sleep(0.02)
  sys.exit(75)
'''


def test_all_go_on_without_a_lost_worker_and_with_it_again_and_end_with_latecomers(meet):
  team = meet(ROUND + '''
if count == 3 and os.path.exists(os.path.join(os.environ['NOTES'], 'back')):
  sys.exit(0)
if count == 2:
  note('small')
elif worker == 1:
  wait_for('lost')
  os.kill(os.getpid(), signal.SIGKILL)
wait_long()
''')
  team.start(0, 1, 2)
  team.wait_for('sizes', 3)
  (team.folder / 'lost').write_text('')
  team.wait_for('small', 2)
  (team.folder / 'back').write_text('')
  for process in team.running.values():
    process.send_signal(signal.SIGUSR1)
  assert team.end() == [0, 0, 0]
  assert team.notes('sizes') == ['3'] * 3 + ['2'] * 2 + ['3'] * 3
  assert 'left out' in team.said[1] and 'left out' not in team.said[0] + team.said[2]
  # An agent that comes when all is done has nothing to do.
  team.start(1)
  assert team.end()[1] == 0 and len(team.notes('sizes')) == 8


@pytest.mark.nightly
def test_a_killed_agent_takes_its_worker_with_it_and_a_new_one_takes_its_place(meet):
  team = meet(ROUND + '''
note('processes', os.getpid())
if count == 2:
  note('small')
if os.path.exists(os.path.join(os.environ['NOTES'], 'back')) and count == 3:
  sys.exit(0)
wait_long()
''')
  team.start(0, 1, 2)
  team.wait_for('sizes', 3)
  team.running[0].kill()
  team.wait_for('small', 2)
  alive = [int(pid) for pid in team.notes('processes') if is_alive(int(pid))]
  assert len(alive) == 2
  (team.folder / 'back').write_text('')
  team.start(0)
  for index in (1, 2):
    team.running[index].send_signal(signal.SIGUSR1)
  assert team.end() == [0, 0, 0]


@pytest.mark.nightly
def test_after_the_only_agent_was_killed_a_new_one_goes_on_without_waiting_for_the_others(meet):
  team = meet(ROUND + '''
if os.path.exists(os.path.join(os.environ['NOTES'], 'back')):
  sys.exit(0)
wait_long()
''')
  team.start(0, flags=['--min_workers=1', '--join_seconds=0'])
  team.wait_for('sizes', 1)
  team.running[0].kill()
  (team.folder / 'back').write_text('')
  team.start(0, flags=['--min_workers=1', '--join_seconds=inf'])
  assert team.end() == [0] and team.notes('sizes') == ['1', '1']


def test_a_mistake_ends_all_agents(meet):
  team = meet(ROUND + 'if worker == 2:\n  sys.exit(2)\nwait_long()\n')
  team.start(0, 1, 2)
  assert team.end() == [2, 2, 2] and set(team.notes('sizes')) == {'3'}


@pytest.mark.nightly
def test_agents_stop_together_or_one_alone_by_a_signal(meet):
  team = meet(ROUND + 'note("sizes_of_small" if count == 2 else "all")\nwait_long()\n')
  team.start(0, 1, 2)
  team.wait_for('all', 3)
  team.running[1].send_signal(signal.SIGTERM)
  team.wait_for('sizes_of_small', 2)
  assert team.running[1].wait(timeout=60) == 143
  done = subprocess.run([sys.executable, '-m', 'towers.launch.agent', '--stop',
                         f'--folder={team.folder}/meeting'], cwd=ROOT, timeout=60)
  assert done.returncode == 143 and team.end() == [143, 143, 143]


def test_a_card_changes_while_a_worker_leaves(meet):
  team = meet('''
def leave(*_):
  note('leaving')
  wait_for('left')
  sys.exit(143)
signal.signal(signal.SIGTERM, leave)
note('ready')
''' + SLEEP)
  team.start(0, flags=['--workers=1', '--min_workers=1'])
  team.wait_for('ready', 1)
  meeting = Meeting(f'{team.folder}/meeting', num_places=1)
  meeting.end(143)
  team.wait_for('leaving', 1)
  beat = meeting.read_cards()[0].beat
  wait_until(lambda: meeting.read_cards()[0].beat > beat + 2)
  (team.folder / 'left').write_text('')
  assert team.end() == [143]


@pytest.mark.nightly
def test_an_agent_gives_up_after_its_restarts(meet):
  team = meet(ROUND + 'sys.exit(3)\n')
  team.start(0, 1, flags=['--join_seconds=0', '--restarts=1'])
  # A worker may be stopped before it ends by itself.
  codes = team.end()
  assert 3 in codes and set(codes) <= {3, 75} and set(team.notes('sizes')) == {'2'}


def test_of_two_agents_in_one_place_the_later_one_stays(meet):
  team = meet(SLEEP)
  team.start(0)
  wait_until(lambda: (team.folder / 'meeting' / 'agent-0.json').exists())
  first = team.running[0]
  team.start(0)
  _, said = first.communicate(timeout=60)
  assert first.returncode == 1 and b'another agent has come for index=0' in said


def test_of_several_writers_of_a_file_the_first_wins(tmp_path):
  path = str(tmp_path / 'round')
  wins = []

  def write(index):
    wins.append((write_once(path, b'%d' % index), index))

  threads = [threading.Thread(target=write, args=[index]) for index in range(16)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  [winner] = [index for is_first, index in wins if is_first]
  assert (tmp_path / 'round').read_text() == str(winner)
  assert os.listdir(str(tmp_path)) == ['round']


def test_a_meeting_keeps_what_is_written_once_and_takes_no_damaged_file(tmp_path):
  folder = str(tmp_path / 'new' / 'meeting')
  here, there = (Meeting(folder, num_places=3) for _ in range(2))
  card = here.take_place(1, '10.0.0.1:2222')._replace(beat=4, phase=STARTED, round=3)
  assert here.read_cards() == {} and here.read_lineup() == Lineup(0, [])
  here.show(card)
  assert there.read_cards() == {1: card}
  assert there.take_place(1, 'other:1').identity > card.identity
  here.propose(Lineup(1, [card]))
  there.propose(Lineup(1, []))
  assert here.read_lineup() == there.read_lineup() == Lineup(1, [card])
  here.end(0)
  there.end(2)
  assert there.read_end() == here.read_end() == 0
  path = tmp_path / 'new' / 'meeting' / 'agent-1.json'
  path.write_text(path.read_text().replace('2222', '2223'))
  assert there.read_cards() == {}
  here.show(Card(1, 0, 'key', phase='unknown'))
  assert there.read_cards() == {}


@pytest.mark.parametrize('flags, words', [
    ([], ['--folder']),
    (['--folder=s3://bucket/meeting'], ['another file system']),
    (['--folder=f', '--index=0', '--workers=2'], ['host is missing', '--host', 'TF_CONFIG']),
    (['--folder=f', '--index=2', '--host=h', '--workers=2'], ['index=2', '0 to 1']),
    (['--folder=f', '--index=0', '--host=h', '--workers=2', '--min_workers=3'], ['min_workers=3']),
    (['--folder=f', '--index=0', '--host=h', '--workers=2', '--lease_seconds=1'], ['at least 2']),
    (['--folder=f', '--index=0', '--host=h', '--workers=0'], ['workers=0', 'at least 1']),
    (['--folder=f', '--index=0', '--host=h', '--workers=2', '--retry'], ['no flag of agent'])])
def test_mistakes_are_named(flags, words):
  with pytest.raises(UsageError) as error:
    agents.parse_arguments([*flags, '--', 'sh'])
  assert all(word in str(error.value) for word in words), str(error.value)


def test_a_command_is_needed_and_a_folder_with_hard_links(tmp_path, monkeypatch):
  flags = [f'--folder={tmp_path}', '--index=0', '--host=h', '--workers=2']
  for command in ([], ['--'], ['--', 'no such command']):
    with pytest.raises(UsageError, match='command'):
      agents.parse_arguments([*flags, *command])

  def link(*_):
    raise PermissionError(1, 'Operation not permitted')

  monkeypatch.setattr(os, 'link', link)
  with pytest.raises(UsageError, match='hard links: Operation not permitted'):
    Meeting(str(tmp_path), num_places=2)


def test_what_no_flag_gives_comes_from_tf_config(monkeypatch):
  cluster = {'worker': ['job-worker-0.ns.svc:2222', 'job-worker-1.ns.svc:2222']}

  def parse(task, *flags):
    monkeypatch.setenv('TF_CONFIG', json.dumps(dict(cluster=cluster, task=task)))
    given = agents.parse_arguments(['--folder=f', *flags, '--', 'sh'])
    return given.index, given.host, given.workers

  assert parse(dict(type='worker', index=1)) == (1, 'job-worker-1.ns.svc', 2)
  assert parse(dict(type='worker', index=1), '--index=3', '--host=h', '--workers=4') == (3, 'h', 4)
  with pytest.raises(UsageError, match='evaluator'):
    parse(dict(type='evaluator', index=0))
