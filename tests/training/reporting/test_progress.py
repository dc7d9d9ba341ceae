"""Progress: what it shows and when, and that only training counts for the speed."""

import io
import re
from types import SimpleNamespace

import pytest

import towers
from tests.harness import small
from towers.base.output import quieted
from towers.input.plan import build_plan
from towers.training.reporting import progress as reporting
from towers.training.reporting.progress import Progress, format_seconds

pytestmark = pytest.mark.usefixtures('clock')
PLAN = build_plan(num_examples=100, batch_size=10, num_towers=2)


class Terminal(io.StringIO):
  encoding = 'utf-8'

  def isatty(self):
    return True


class Session:
  """A session and its metrics in one, of which a rate and an input wait are known."""

  def __init__(self, step=0, plan=PLAN):
    self.step, self.plan, self.input_wait_seconds = step, plan, 0.0
    self.training_metrics = self

  def learning_rates(self):
    return {'learning_rate': 0.1}

  def mark(self):
    return None

  def since(self, mark):
    return {}


def run(stream, *, steps=20, step_seconds=1.0, first_step=0, pause_after=None, plan=PLAN,
        **settings):
  clock = reporting.time
  progress = Progress(Session(first_step, plan), total_steps=steps, stream=stream, **settings)
  clock.seconds = 50.0  # Set-up and the first step, which do not count.
  for step in range(first_step + 1, steps + 1):
    progress.on_step(SimpleNamespace(step=step, loss=2.0 / step))
    if step == pause_after:
      with progress.paused():
        clock.seconds += 1000
        progress.on_validation(SimpleNamespace(
            validation_step=step, validation={'loss': 0.5, 'accuracy': 0.25},
            validation_examples=1234))
    clock.seconds += step_seconds
  return progress


def test_plain_lines_come_at_once_then_now_and_then_and_at_the_end():
  stream = io.StringIO()
  run(stream)
  lines = stream.getvalue().splitlines()
  assert [re.search(r'step (\d+)/20', line).group(1) for line in lines] == [
      '1', '6', '11', '16', '20']
  assert re.match(r'\d\d:\d\d:\d\d step 11/20, epoch 2/2: loss 0.1818, rate 0.1, 10 examples/s, '
                  r'0:09 left$', lines[2])
  assert 'left' not in lines[-1]


@pytest.mark.parametrize('settings, expected', [
    ({}, 10), (dict(pause_after=7), 10), (dict(pause_after=12), 10),
    # A resumed run counts its own steps.
    (dict(first_step=12, step_seconds=0.5), 20),
    # The last batch of an epoch is smaller: steps of 10, 10 and 5 examples.
    (dict(steps=7, plan=build_plan(num_examples=25, batch_size=10, num_towers=2)), 50 / 6)])
def test_the_speed_counts_training_alone_from_the_second_step_on(settings, expected):
  assert run(io.StringIO(), **settings).examples_per_second == pytest.approx(expected)
  assert run(io.StringIO(), **dict(settings, steps=1, first_step=0)).examples_per_second is None


def test_an_epoch_that_is_not_whole_counts():
  stream = io.StringIO()
  run(stream, steps=24)
  assert 'step 1/24, epoch 1/3:' in stream.getvalue()
  assert 'step 24/24, epoch 3/3:' in stream.getvalue()


def test_the_loss_is_a_mean_of_the_steps_of_its_parts(capsys):
  def model(batch, is_training):
    losses, _ = small.model(batch, is_training)
    return {'whole': losses, 'half': losses / 2}

  towers.train(small.program(model=model), epochs=3)
  shown = re.findall('step .*: loss (.*), whole (.*), half (.*), rate', capsys.readouterr().out)
  loss, whole, half = map(float, shown[-1])
  assert loss == pytest.approx(whole + half, abs=2e-4)


def test_the_time_of_all_pauses_adds_up(clock):
  progress = Progress(Session(), total_steps=5, stream=io.StringIO())
  progress.on_step(SimpleNamespace(step=1, loss=1.0))
  for seconds in (3.0, 4.0):
    with progress.paused():
      clock.seconds += seconds
    clock.seconds += 1.0
  assert progress.seconds() == {'training': 2.0, 'validation, checkpoints': 7.0}


def test_waiting_for_input_is_a_share_of_the_training_time(clock):
  stream, steps = io.StringIO(), Session()
  steps.input_wait_seconds = 7.0
  progress = Progress(steps, total_steps=20, stream=stream)
  assert progress.input_wait is None
  for step in range(1, 21):
    # The first step, and the 7 seconds in it, do not count.
    progress.on_step(SimpleNamespace(step=step, loss=1.0))
    clock.seconds += 1.0
    steps.input_wait_seconds += 0.0 if step > 10 else 0.5
  assert progress.input_wait == pytest.approx(5 / 19)
  shown = [line.split(', ')[-2 if 'left' in line else -1]
           for line in stream.getvalue().splitlines()]
  assert [word for word in shown if 'waits' in word] == ['waits 50%', 'waits 50%']
  del steps.input_wait_seconds  # It adds up what steps have kept: for a line, not for each step.
  progress.on_step(SimpleNamespace(step=21, loss=1.0))


@pytest.mark.parametrize('columns', [40, 80, 200])
def test_a_bar_is_drawn_over_itself_within_the_terminal(columns, monkeypatch):
  stream = Terminal()
  monkeypatch.setenv('COLUMNS', str(columns))
  run(stream, pause_after=12)
  drawings = stream.getvalue().split('\r\x1b[K')
  assert all(len(drawing) <= columns or drawing.startswith('validation') for drawing in drawings)
  assert 'validation after step 12: loss 0.5000, accuracy 0.2500 (1,234 examples)\n' in drawings
  assert stream.getvalue().endswith('\n')
  if columns > 40:
    assert '━' * 8 in drawings[-1] and '─' not in drawings[-1]


@pytest.mark.parametrize('columns, shown', [
    (20, '━━━━──── step 10/20'),
    (30, 'step 10/20  0:10 left'),
    (40, 'step 10/20  loss 0.2000  0:10 left'),
    (50, 'epoch 1/2 step 10/20  loss 0.2000  0:10 left'),
    (60, 'epoch 1/2 step 10/20  loss 0.2000  10 examples/s  0:10 left'),
    (72, 'epoch 1/2 ━━━━━━───── step 10/20  loss 0.2000  10 examples/s  0:10 left'),
    (84, 'epoch 1/2 ━━━━━━─────── step 10/20  loss 0.2000  rate 0.1  10 examples/s  0:10 left')])
def test_a_narrow_line_leaves_out_what_matters_least(columns, shown, monkeypatch):
  stream = Terminal()
  monkeypatch.setenv('COLUMNS', str(columns))
  run(stream)
  assert shown in stream.getvalue().split('\r\x1b[K')


@pytest.mark.parametrize('is_chief', [True, False], ids=['chief', 'other'])
@pytest.mark.parametrize('kind', [Terminal, io.StringIO], ids=['terminal', 'pipe'])
def test_quiet_shows_only_warnings(kind, is_chief):
  stream = kind()
  with quieted():
    progress = run(stream, pause_after=7, is_chief=is_chief)
    progress.on_warning(None, 'WARNING: something')
    progress.on_close(None)
  assert stream.getvalue() == 'WARNING: something\n'
  assert progress.examples_per_second == pytest.approx(10)


def test_closing_ends_the_line_of_an_unfinished_bar():
  stream = Terminal()
  progress = run(stream, steps=12)
  progress.on_step(SimpleNamespace(step=11, loss=0.5))
  progress.on_close(None)
  assert re.search(r'step 11/12 [^\n]*\n$', stream.getvalue())
  progress.on_close(None)
  assert stream.getvalue().count('\n') == 2


def test_a_terminal_without_the_characters_gets_others():
  stream = Terminal()
  stream.encoding = 'latin-1'
  run(stream)
  stream.getvalue().encode('latin-1')
  assert '###' in stream.getvalue()


def test_seconds_read_like_a_clock():
  assert [format_seconds(seconds) for seconds in (0, 59.6, 61, 3723)] == [
      '0:00', '1:00', '1:01', '1:02:03']


def test_a_log_that_cannot_be_written_ends_no_run():
  class FullDisk(io.StringIO):
    def write(self, text):
      raise OSError(28, 'No space left on device')

  assert run(FullDisk()).examples_per_second == pytest.approx(10)


def test_a_rewind_measures_the_speed_anew(clock):
  stream = io.StringIO()
  progress = run(stream, steps=12)
  progress.on_rewind(SimpleNamespace(step=4))
  assert progress.seconds_per_step() == 0 and progress.examples_per_second is None
  for step in (5, 6):
    clock.seconds += 10
    progress.on_step(SimpleNamespace(step=step, loss=1.0))
  assert stream.getvalue().endswith('1:00 left\n')
