"""The launcher goes on with the workers that are left, and later with the lost ones again."""

import json
import math
import signal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher import SLEEP
from towers_launch.members import plan_members
from towers_launch.roster import Roster

pytestmark = pytest.mark.plain

WORKERS, LEAST, RETRY_SECONDS = 4, 2, 10.0


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 100), st.sets(st.integers(0, WORKERS - 1)), st.booleans())))
def test_enough_take_part_and_a_lost_one_returns_after_its_time(rounds):
  now = [0.0]
  roster = Roster(plan_members(WORKERS, gpus_per_worker=1), min_workers=LEAST,
                  retry_seconds=RETRY_SECONDS, clock=lambda: now[0])
  lost = {}
  for lasts, ranks, waits in rounds:
    began = now[0]
    members = roster.begin()
    assert LEAST <= len(members) <= WORKERS
    assert [member.task_index for member in members] == list(range(len(members)))
    assert roster.is_complete == (len(members) == WORKERS)
    assert roster.is_complete == math.isinf(roster.seconds_until_more())
    now[0] += roster.seconds_until_more() if waits and not roster.is_complete else lasts
    ranks = {rank for rank in ranks if rank < len(members)}
    was_smaller = len(members)
    assert roster.lose(ranks) == (roster.num_present < was_smaller)
    left = {member.gpus[0] for member in roster.begin()}
    if len(ranks) == len(members):  # No worker is to blame.
      assert left == {member.gpus[0] for member in members}
    elif len(members) - len(ranks) >= LEAST:
      assert left == {member.gpus[0] for rank, member in enumerate(members) if rank not in ranks}
      lost.update({members[rank].gpus[0]: began for rank in ranks})
    if waits:
      roster.take_back()
      assert len(roster.begin()) >= len(left)


def test_a_worker_that_is_lost_again_soon_is_left_out_twice_as_long_and_others_do_not_matter():
  now = [0.0]
  roster = Roster(plan_members(3), min_workers=1, retry_seconds=10, clock=lambda: now[0])

  def lose(rank, after):
    roster.begin()
    now[0] += after
    roster.lose([rank])
    return roster.seconds_until_more()

  waits = []
  for after in (500, 5, 20, 35, 100):
    waits.append(lose(2, after))
    now[0] += waits[-1]
    roster.take_back()
  assert waits == [10, 20, 40, 80, 10]
  assert lose(1, 3) == 10
  roster.begin()
  assert not roster.was_lost(0) and roster.was_lost(1)
  # Two rounds of which the second only adds workers are as far apart.
  now[0] += 9
  assert lose(0, 0) == 10


# Rounds are told apart by their addresses; each worker notes its round, rank and GPUs.
ROUND = '''
config = os.environ['TF_CONFIG']
count = len(json.loads(config)['cluster']['worker'])
signal.signal(signal.SIGTERM, %s)
note('rounds', json.dumps([json.loads(config)['cluster']['worker'][0], worker,
                           os.environ.get('CUDA_VISIBLE_DEVICES')]))
def others_are_there():
  lines = [json.loads(line) for line in open(os.path.join(os.environ['NOTES'], 'rounds'))]
  address = json.loads(config)['cluster']['worker'][0]
  return sum(line[0] == address for line in lines) == count
while not others_are_there():
  time.sleep(0.01)
def is_first(name):
  try:
    os.close(os.open(os.path.join(os.environ['NOTES'], name), os.O_CREAT | os.O_EXCL))
    return True
  except FileExistsError:
    return False
'''
# Before a worker notes that it is there, so that none ends by SIGTERM when all shall fail.
DEAF_ROUND = ROUND % 'signal.SIG_IGN'
ROUND %= 'lambda *_: sys.exit(143)'
GPUS = {'CUDA_VISIBLE_DEVICES': '3,4,5'}


def rounds(launcher):
  """Returns the GPUs of each round, by rank."""
  found = {}
  for line in launcher.notes('rounds'):
    address, rank, gpus = json.loads(line)
    found.setdefault(address, {})[rank] = gpus
  return [[ranks[rank] for rank in sorted(ranks)] for ranks in found.values()]


@pytest.mark.nightly(but='0-True')
@pytest.mark.parametrize('rank, asks', [(0, True), (1, False)])
def test_a_lost_worker_is_left_out_and_comes_back_when_asked_for_or_after_the_time(
    rank, asks, start):
  launcher = start(ROUND + f'''
if count == 3 and worker == {rank} and is_first('lost'):
  os.kill(os.getpid(), signal.SIGKILL)
if count == 3 and not os.path.exists(os.path.join(os.environ['NOTES'], 'small')):
''' + f'  {SLEEP}' + '''
if count == 2:
  note('small')
''' + f'  {SLEEP}', '--workers=3', '--min_workers=2', '--gpus_per_worker=1',
                   f'--retry_seconds={"inf" if asks else 4}', environment=GPUS)
  launcher.wait_for('small', 2)
  if asks:
    launcher.process.send_signal(signal.SIGUSR1)
  assert launcher.end() == 0
  left = [gpu for index, gpu in enumerate('345') if index != rank]
  assert rounds(launcher) == [['3', '4', '5'], left, ['3', '4', '5']]
  said = launcher.said()
  assert f'launch: worker {rank} was killed by SIGKILL' in said
  assert any(line.startswith('launch: restart 1 of 3: goes on with 2 of 3 workers from the last '
                             'checkpoint') for line in said)
  assert said[-1] == 'launch: goes on with 3 of 3 workers from the last checkpoint'


FAILS_ONCE = DEAF_ROUND + """
if is_first('done %%d' %% worker):
  sys.exit(%d)
"""


@pytest.mark.nightly(but=['the others miss it', 'all fail', 'too few are left'])
@pytest.mark.parametrize('child, workers, expected, last', [
    (ROUND + f"""
if count == 3 and worker != 1:
  sys.exit(75)
if count == 3:
  {SLEEP}
""", 3, ['345', '35'], 'restart 1 of 3: goes on with 2 of 3 workers from the last checkpoint, and '
     'tries for more after 60 s or SIGUSR1'),
    # All fail, or leave on a request from elsewhere: no worker is to blame.
    *((FAILS_ONCE % code, 2, ['34', '34'], 'restart 1 of 3 in 1 s') for code in (3, 143, 75)),
    # The one that was lost first takes part again.
    (ROUND + f"""
if worker == 0 and (count == 2 and is_first('first') or count == 1 and is_first('second')):
  os.kill(os.getpid(), signal.SIGKILL)
if count == 2:
  {SLEEP}
""", 2, ['34', '4', '3'], 'restart 2 of 3 in 2 s')],
    ids=['the others miss it', 'all fail', 'all leave', 'all miss another', 'too few are left'])
def test_the_lost_worker_is_left_out_if_there_is_one(child, workers, expected, last, start):
  launcher = start(child, f'--workers={workers}', f'--min_workers={workers - 1}',
                   '--gpus_per_worker=1', environment=GPUS)
  assert launcher.end() == 0
  assert rounds(launcher) == list(map(list, expected))
  assert launcher.said()[-1] == f'launch: {last}'


@pytest.mark.nightly
def test_a_mistake_ends_all_but_not_of_a_worker_that_trained_before(start):
  child = ROUND + '''
if os.environ['CUDA_VISIBLE_DEVICES'] == '4':
  if is_first('lost'):
    os.kill(os.getpid(), signal.SIGKILL)
  sys.exit(2)
''' + SLEEP
  launcher = start(child, '--workers=3', '--min_workers=2', '--gpus_per_worker=1', '--restarts=2',
                   '--retry_seconds=1', environment=GPUS)
  launcher.wait_for('rounds', 3 + 2 + 3 + 2)
  launcher.process.send_signal(signal.SIGTERM)
  assert launcher.end() == 143
  assert [len(ranks) for ranks in rounds(launcher)] == [3, 2, 3, 2]
  (launcher.folder / 'rounds').unlink()
  launcher = start(child, '--workers=3', '--min_workers=2', '--gpus_per_worker=1', environment=GPUS)
  assert launcher.end() == 2 and [len(ranks) for ranks in rounds(launcher)] == [3]
