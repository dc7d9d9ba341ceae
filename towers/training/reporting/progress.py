"""Progress: how far a run is, how fast, and how long it will still take.

On a terminal Progress redraws one line, cut to its width, and in a notebook's cell as well, which
takes fewer drawings; anywhere else it prints a plain line with the time every few seconds.

  epoch 2/5 ━━━━━━━━━━━─────────── step 78/315  loss 0.6021  rate 0.05  5,310 examples/s  0:03 left
  14:02:11 step 78/315, epoch 2/5: loss 0.6021, rate 0.05, 5,310 examples/s, 0:03 left
"""

import contextlib
import shutil
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, TextIO

from towers.base.output import is_notebook, shows_all, write
from towers.input.plan import Plan
from towers.session.session import Session
from towers.session.validation_pass import format_means
from towers.training.callbacks import Callback

_SECONDS_BETWEEN_DRAWINGS = 0.1
# Each one is a message to the browser, and some notebooks keep them all.
_SECONDS_BETWEEN_DRAWINGS_IN_A_CELL = 1.0
_SECONDS_BETWEEN_LINES = 5.0
_COLUMNS_OF_A_CELL = 100
_LONGEST_BAR = 30
_SHORTEST_BAR = 8
# The line leaves out a smaller share of time that the towers wait for input.
_SHOWN_WAIT = 0.05


class Pace(NamedTuple):
  """A moment of a run: its steps, seconds of training without pauses, and those that input took."""
  step: int
  seconds: float
  waited: float

  def speed_since(self, before: 'Pace', plan: Plan) -> Optional[float]:
    """Returns examples per second; None if no step was timed since."""
    examples = plan.examples_before(self.step) - plan.examples_before(before.step)
    seconds = self.seconds - before.seconds
    return examples / seconds if examples and seconds > 0 else None

  def wait_since(self, before: 'Pace') -> Optional[float]:
    """Returns the share of the time in which towers waited, 0 to 1; None as for the speed."""
    seconds = self.seconds - before.seconds
    return min(float(self.waited - before.waited) / seconds, 1.0) if seconds > 0 else None


class Progress(Callback):
  """Shows a training run, step by step: loss and metrics are means since the line before.

  Attributes:
    train_seconds: of training, without pauses and the first step.
    first_step_at: when the first step ended, by the clock; None until then.
    longest_pause: seconds of the longest validation or checkpoint.
  """

  def __init__(self, session: Session, *, total_steps: int,
               on_first_step: Callable[[], None] = lambda: None, stream: Optional[TextIO] = None,
               is_chief: bool = True):
    """Prepares to show a run of `total_steps`, of which some may be done.

    Args:
      session: whose steps it shows.
      on_first_step: called after the first step, before anything is shown.
      stream: a terminal or a notebook gets a bar; `sys.stdout` if None.
      is_chief: whether it shows steps and validations, which all workers take together.
    """
    self._session, self._metrics, self._plan = session, session.training_metrics, session.plan
    self._metrics_mark = self._metrics.mark()
    self._total_steps = total_steps
    self._total_epochs = self._plan.epoch_and_index(total_steps - 1)[0] + 1
    self._on_first_step = on_first_step
    self._stream = stream or sys.stdout
    self._is_cell = is_notebook(self._stream)
    self._draws = self._is_cell or (hasattr(self._stream, 'isatty') and self._stream.isatty())
    self._is_chief = is_chief
    is_unicode = 'utf' in (getattr(self._stream, 'encoding', None) or '').lower()
    self._bar_characters = ('━', '─') if is_unicode else ('#', '-')
    self._drawn = ''
    # The thread that writes checkpoints may print a warning.
    self._lock = threading.RLock()
    self._next_show = float('-inf')

    self.first_step_at: Optional[float] = None
    self._step, self.train_seconds = session.step, 0.0
    self._began = self._shown = self._pace  # The last step that is not timed, and the last line.
    self._began_at = 0.0  # When that step had ended.
    self._mark = 0.0  # The end of the last step or pause, from which training time counts.
    self._paused_seconds = self.longest_pause = 0.0

  def on_step(self, run: Any) -> None:
    """Counts a step, and shows it when a line is due."""
    now, step = time.monotonic(), run.step
    if self.first_step_at is None:
      self.first_step_at = now
      self._on_first_step()
      self._begin(step, now)  # It includes set-up, so the speed counts from the second one.
    else:
      self.train_seconds += now - self._mark
    self._step, self._mark = step, now
    if self._is_chief and shows_all() and (now >= self._next_show or step == self._total_steps):
      self._next_show = now + (
          _SECONDS_BETWEEN_DRAWINGS_IN_A_CELL if self._is_cell else
          _SECONDS_BETWEEN_DRAWINGS if self._draws else _SECONDS_BETWEEN_LINES)
      self._show(now, run.loss)
      self._shown = self._pace

  def on_validation(self, run: Any) -> None:
    """Writes the means over the validation split."""
    if self._is_chief:
      self.write(f'validation after step {run.validation_step:,}: '
                 f'{format_means(run.validation, run.validation_examples)}')

  def on_warning(self, run: Any, text: str) -> None:
    """Writes a warning; from any thread."""
    self.write(text)

  def write(self, text: str) -> None:
    """Writes a line above the bar; from any thread."""
    with self._lock:
      clear = self._erase() if self._drawn else ''
      self._drawn = ''
      write(clear + text + '\n', self._stream)

  def on_close(self, run: Any) -> None:
    """Ends the bar's line, so that whatever is printed next starts a new one."""
    with self._lock:
      if self._drawn:
        self._drawn = ''
        write('\n', self._stream)

  def on_rewind(self, run: Any) -> None:
    """Continues from an earlier step, and measures speed and metrics anew."""
    self._metrics_mark = self._metrics.mark()
    self._begin(run.step, time.monotonic())

  def _begin(self, step, now):
    """Lets the speed count from a step on."""
    self._step, self.train_seconds, self._began_at = step, 0.0, now
    self._began = self._shown = self._pace

  @property
  def _pace(self):
    """Now; not to be read after every step, for it adds up what the metrics have kept."""
    return Pace(self._step, self.train_seconds, self._metrics.input_wait_seconds)

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Opens a context whose time does not count as training."""
    began = time.monotonic()
    try:
      yield
    finally:
      self._mark = time.monotonic()
      self._paused_seconds += self._mark - began
      self.longest_pause = max(self.longest_pause, self._mark - began)

  def seconds(self) -> Dict[str, float]:
    """Returns the seconds of each phase of this process, since its first step."""
    since = 0.0 if self.first_step_at is None else time.monotonic() - self.first_step_at
    return {'training': since - self._paused_seconds,
            'validation, checkpoints': self._paused_seconds}

  @property
  def examples_per_second(self) -> Optional[float]:
    """The speed of training, without first step and pauses; None with fewer than two steps."""
    return self._pace.speed_since(self._began, self._plan)

  def seconds_per_step(self) -> float:
    """Returns the seconds of a mean step, or 0 before any was timed."""
    return self.train_seconds / max(1, self._step - self._began.step)

  @property
  def input_wait(self) -> Optional[float]:
    """The share of training time that towers waited for input, 0 to 1; None as for the speed."""
    return self._pace.wait_since(self._began)

  def _show(self, now, loss):
    facts = self._list_facts(now, loss)
    if self._draws:
      columns = _COLUMNS_OF_A_CELL if self._is_cell else shutil.get_terminal_size().columns
      line = self._draw(facts, columns - 1)
      with self._lock:
        clear, is_last = self._erase(), self._step == self._total_steps
        self._drawn = '' if is_last else line
        write(clear + line + ('\n' if is_last else ''), self._stream)
    else:
      epoch, count = facts.pop('epoch'), facts.pop('step')
      self.write(f"{time.strftime('%H:%M:%S')} {count}, {epoch}: {', '.join(facts.values())}")

  def _erase(self):
    """Returns what takes the bar away; a cell knows no command for it, but that it goes back."""
    return f"\r{' ' * len(self._drawn)}\r" if self._is_cell else '\r\x1b[K'

  def _list_facts(self, now, loss):
    step, pace = self._step, self._pace
    epoch = f'epoch {self._plan.epoch_and_index(step - 1)[0] + 1}/{self._total_epochs}'
    means = self._metrics.since(self._metrics_mark)
    self._metrics_mark = self._metrics.mark()
    facts = {'epoch': 'stream' if self._plan.is_endless else epoch,
             'step': f'step {step:,}/{self._total_steps:,}',
             'loss': f"loss {means.pop('loss', loss):.4f}"}
    if means:
      facts['metrics'] = ', '.join(f'{name} {mean:.4f}' for name, mean in means.items())
    rates = self._session.learning_rates()
    if rates:  # Some optimizers hide theirs.
      facts['rate'] = 'rate ' + ', '.join(f'{rate:.3g}' for rate in rates.values())
    speed = pace.speed_since(self._shown, self._plan)
    if speed:
      facts['speed'] = f'{speed:,.0f} examples/s'
    waited = pace.wait_since(self._shown)
    if waited and waited >= _SHOWN_WAIT:
      facts['wait'] = f'waits {waited:.0%}'
    if self._began.step < step < self._total_steps:
      # The steps to come will pause for validation and checkpoints as those before did.
      seconds_per_step = (now - self._began_at) / (step - self._began.step)
      facts['left'] = f'{format_seconds(seconds_per_step * (self._total_steps - step))} left'
    return facts

  def _draw(self, facts, columns):
    """Returns the line, with a bar if there is room, and without the least of facts if not."""
    for left_out in ('', 'rate', 'wait', 'metrics', 'speed', 'epoch', 'loss', 'left'):
      facts = {name: fact for name, fact in facts.items() if name != left_out}
      head = facts.get('epoch', '')
      tail = '  '.join(fact for name, fact in facts.items() if name != 'epoch')
      room = min(_LONGEST_BAR, columns - len(head) - len(tail) - (2 if head else 1))
      if room >= _SHORTEST_BAR:
        done = round(room * self._step / self._total_steps)
        full, empty = self._bar_characters
        return ' '.join(([head] if head else []) + [full * done + empty * (room - done), tail])
      line = f'{head} {tail}' if head else tail
      # The rate gives way to the bar, and the bar to everything else.
      if left_out and len(line) <= columns:
        break
    return line[:columns]


def format_seconds(seconds: float) -> str:
  """Returns 0:07, 12:34 or 1:02:03."""
  minutes, rest = divmod(int(round(seconds)), 60)
  hours, minutes = divmod(minutes, 60)
  return f'{hours}:{minutes:02}:{rest:02}' if hours else f'{minutes}:{rest:02}'
