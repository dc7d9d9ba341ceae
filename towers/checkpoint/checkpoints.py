"""Checkpoints: all variables in TensorFlow's format, equal for any towers, mode and placement.

Names of variables hold no tower, so 4 towers of TensorFlow 1.14 go on as 1 tower on 2.x.

  loop      step 500 ─► snapshot ─► step 501 ─► step 502 ─► step 503 …
                          │ values of all variables, between two steps
  thread                  └─► write aside ─► history.json ─► rename its files
                              ─► state file ─► delete oldest

A snapshot costs the loop one copy, and on the CPU none, since an update never writes into a buffer
that is still being read. What a killed run leaves half written has another name. Restoring reads
every tensor and its checksum, and takes the newest checkpoint that is whole.
"""

import concurrent.futures
import contextlib
import os
import re
import sys
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from towers.base.checksums import DATA, INDEX, SUMS, write_sums
from towers.base.files import folder_aside, open_regular, sweep, write_whole
from towers.base.output import write_line
from towers.base.reason import find_reason
from towers.base.usage_error import UsageError, format_lines
from towers.checkpoint.history import HISTORY, History
from towers.checkpoint.restore import Data, restore_variables
from towers.data.digest import DATA_TENSOR
from towers.input import resume_point
from towers.input.resume_point import Order, ResumePoint
from towers.placement.counters import get_examples_seen, get_global_step
from towers.process.run_error import RunError
from towers.process.threads import Threads
from towers.tensorflow_v1 import tf
from towers.update.moving_averages import AVERAGES_TENSOR, Averages
from towers.warm_start.matching import Names
from towers.warm_start.slices import find_slice

PREFIX = 'model.ckpt'
# In the order in which they get their names, and in reverse that in which they are deleted.
_SUFFIXES = (DATA, SUMS, INDEX)
_MOST_BYTES = 1 << 20  # Of a state file.


def path_of(folder: str, step: int) -> str:
  """Returns the path of a step's checkpoint as TensorFlow takes it, without file suffixes."""
  return os.path.join(folder, f'{PREFIX}-{step}')


def list_steps(folder: str) -> List[int]:
  """Returns the steps of all checkpoints in a folder that have an index, the newest first."""
  pattern = re.compile(rf'{re.escape(PREFIX)}-(\d+){re.escape(INDEX)}$')
  try:
    names = os.listdir(folder)
  except (FileNotFoundError, NotADirectoryError):
    names = []
  except OSError as error:
    raise UsageError(f'The checkpoints in {folder} cannot be listed: {error.strerror}. Let this '
                     'user read the folder, or give another.') from None
  matches = [pattern.match(name) for name in names]
  return sorted((int(match.group(1)) for match in matches if match), reverse=True)


def find_checkpoints(folder: str) -> List[str]:
  """Returns the paths of all checkpoints, those too whose index is gone, the newest first.

  The state file names them, and is not needed for others.
  """
  steps = set(list_steps(folder))
  with contextlib.suppress(OSError), open_regular(os.path.join(folder, 'checkpoint')) as file:
    named = re.findall(rf'{re.escape(PREFIX)}-(\d+)"'.encode(), file.read(_MOST_BYTES))
    steps.update(map(int, named))
  return [path_of(folder, step) for step in sorted(steps, reverse=True)]


def find_best(folder: str, metric: Optional[str], *, or_newest: bool = True) -> int:
  """Returns a folder's best step by a metric (None: the run's), the newest without validations.

  Where there is none, or it may not be the newest, it is a UsageError.
  """
  steps = list_steps(folder)
  if not steps:
    problem = ('has no checkpoint' if os.path.isdir(folder) else
               'is a file' if os.path.isfile(folder) else 'does not exist')
    raise UsageError(f'checkpoint_dir={folder} {problem}: give the folder of a run that has saved.')
  history = History(metric=metric)
  history.read(folder, sys.maxsize)
  history.check_metric()
  found = [step for step in history.best_first() if step in steps]
  if not found and not or_newest:
    raise UsageError(f'{folder} has no best checkpoint: no validation of one has a '
                     f'{history.metric.name} that is a number. Write '
                     f"session.restore('{folder}') for the newest one.")
  if found and history.best_first()[0] not in steps:
    write_line(f'WARNING: no checkpoint in {folder} is of the best validation any more, '
               f'{history.describe_best()}: that of step {found[0]} is the best that is kept',
               sys.stderr)
  return (found + steps)[0]


class Snapshot(NamedTuple):
  """Where a run stands between two steps: as good as a checkpoint, in memory."""
  point: ResumePoint  # Where the data stands.
  # Of all variables, by name; {} in a worker that is not the chief.
  values: Mapping[str, np.ndarray]

  @property
  def step(self) -> int:
    """How many updates are done."""
    return self.point.step


class Checkpoints:
  """Saves to and restores from one folder; without one it does nothing.

  Attributes:
    folder: holds the checkpoints; '' without one.
    saved_step: the newest that was restored or saved, by the chief where another worker writes.
    error: why the last write failed, if that must end the run; else ''.
    reason: why the last write failed; '' after one that did not.
  """

  def __init__(self, folder: Optional[str], *, keep: int, writes: bool = True,
               stop_on_full_disk: bool = False, data: Optional[Data] = None,
               averages: Optional[Averages] = None, warn: Callable[[str], None] = write_line):
    """Prepares to save all global variables to a folder, which it makes; see also `lock_folder`.

    Args:
      keep: how many of the newest checkpoints stay, besides the best one.
      writes: whether this worker writes; another only notes which steps are saved.
      stop_on_full_disk: whether a checkpoint that cannot be written ends the run, or is a warning.
      data: the training examples, which checkpoints record, and a resumed run compares; None to
        record none.
      averages: of the program's weights, if it has any.
      warn: called with a message for the user, perhaps from another thread.
    """
    self.folder = folder or ''
    self.saved_step: Optional[int] = None
    self._writes = writes and bool(folder)
    self.error = self.reason = ''
    self._constants: Dict[str, np.ndarray] = {}
    if data is not None:
      self._constants = {resume_point.ORDER_TENSOR: data.order.to_array(),
                         DATA_TENSOR: data.digest.to_array()}
      if data.plan.carries:
        self._constants[resume_point.CARRY_TENSOR] = np.array(True)
    if averages is not None:
      self._constants[AVERAGES_TENSOR] = np.array(averages.decay)
    self._keep = keep
    self._stop_on_full_disk = stop_on_full_disk
    self._warn = warn
    self._variables = tf.global_variables()
    self._data, self._averages = data, averages
    self._writer: Optional[_Writer] = None
    self._thread = Threads(1, thread_name_prefix='checkpoint')
    self._writing: Optional[concurrent.futures.Future] = None
    self._writing_step: Optional[int] = None
    if self._writes:
      os.makedirs(self.folder, exist_ok=True)

  def restore(self, session: Any, chosen: Optional[str] = None, *, names: Names = None,
              new: Sequence[str] = ()) -> Optional[Tuple[str, ResumePoint]]:
    """Restores the newest checkpoint that is whole, or the one whose path is chosen.

    `names` and `new` say how it may differ, see `restore_variables`. Returns its path and where its
    data stood, or None in an empty folder. If none is whole, it is a UsageError.
    """
    self.wait()
    if not self.folder:
      return None
    sweep(self.folder)
    reasons: List[str] = []
    for path in [chosen] if chosen else find_checkpoints(self.folder):
      try:
        notice = restore_variables(session, path, averages=self._averages, names=names, new=new,
                                   data=self._data)
      except UsageError:
        raise
      except Exception as error:  # A damaged file makes TensorFlow raise anything.
        reasons.append(f'{path} cannot be read: {find_reason(error)}')
        continue
      for reason in reasons:
        self._warn(f'WARNING: {reason}. The run resumes from the one before it.')
      if notice:
        self._warn(notice)
      return path, self._find_point(session, path)
    if chosen:
      raise UsageError(f'{reasons[0]}. Put a copy that is whole there, or name another checkpoint.')
    if reasons:
      raise UsageError(f'No checkpoint in {self.folder} can be read:\n{format_lines(reasons)}\nPut '
                       'a copy that is whole there, or give another checkpoint_dir to start anew.')
    return None

  def write(self, snapshot: Snapshot, history: Optional[History] = None) -> None:
    """Writes a snapshot, and the history, in the background, once the one before it is written."""
    self.wait()
    if not self._writes:
      self.saved_step = snapshot.step
      return
    # Formatted now, since the loop may add to the history meanwhile.
    text = history.format() if history else ''
    orders = [history.best_first(undue=undue) for undue in (True, False)] if history else []
    self._writing_step = snapshot.step
    self._writing = self._thread.submit(self._write, snapshot, text, orders)

  def write_history(self, history: History) -> None:
    """Writes the history alone."""
    if self._writes:
      write_whole(os.path.join(self.folder, HISTORY), history.format().encode())

  def save(self, snapshot: Snapshot) -> str:
    """Writes a snapshot now, under the number of its updates; returns the path, or raises."""
    self.write(snapshot)
    self.wait()
    if not self.has_saved(snapshot.step):
      raise RunError(self.reason)
    path, newest = path_of(self.folder, snapshot.step), list_steps(self.folder)[0]
    if newest > snapshot.step:
      self._warn(f'WARNING: {self.folder} has a checkpoint of step {newest}, of another run or '
                 f'way, which is restored from the folder: restore {path}, or save to another one')
    return path

  def has_saved(self, step: int) -> bool:
    """Whether there is nothing to save of `step`: it is saved, or being saved, or none is."""
    return not self.folder or step in (self._writing_step, self.saved_step)

  def wait(self) -> None:
    """Waits for the checkpoint that is being written."""
    writing, self._writing = self._writing, None
    if writing is not None:
      writing.result()

  def close(self) -> None:
    """Waits, and frees the session that writes."""
    self.wait()
    if self._writer is not None:
      self._writer.session.close()
      self._writer = None

  def _find_point(self, session, path):
    """Returns where the data stands; notes other data, another order, or steps of another size."""
    data, reader = self._data, tf.train.load_checkpoint(path)
    if data is None:
      return None
    step, plan = int(session.run(get_global_step())), data.plan
    texts, difference = [], data.compare(reader, path)
    if difference:
      texts.append(data.begin_epoch(session, path, step, difference))
    elif not reader.has_tensor(DATA_TENSOR):
      texts.append(f'{path} does not record its training data, as those of earlier versions: it is '
                   'not compared')
    seen = int(session.run(get_examples_seen()))
    point, batch_size = resume_point.read_point(reader, plan, step, seen, bool(difference))
    if not difference and not reader.has_tensor(resume_point.POINT_TENSOR):
      data.check_steps(path, step=step, examples_seen=seen)
    saved = None
    if reader.has_tensor(resume_point.ORDER_TENSOR):
      saved = Order.from_array(reader.get_tensor(resume_point.ORDER_TENSOR))
      saved = saved._replace(window=saved.window // batch_size * plan.batch_size)
    plan = plan.resumed_at(point)
    text = resume_point.explain_order(path, plan=plan, order=data.order, saved=saved)
    texts += [text and f'WARNING: {text}', resume_point.explain_batch_size(batch_size, plan)]
    if plan.is_endless:
      texts.append(f'the stream begins anew: what the {seen:,} examples seen came from is not kept')
    for text in filter(None, texts):
      self._warn(text)
    return point

  def _write(self, snapshot, text, orders):
    """Writes a checkpoint, whole or not at all, in a thread; keeps the best of each order."""
    try:
      constants = dict(self._constants)
      if self._data is not None:
        constants[resume_point.POINT_TENSOR] = np.array(
            [self._data.plan.batch_size, snapshot.point.epoch, snapshot.point.position,
             *snapshot.point.cuts])
      self._writer = self._writer or _Writer(self._variables, constants)
      with folder_aside(self.folder) as aside:
        self._writer.write(os.path.join(aside, PREFIX),
                           [*snapshot.values.values(), *constants.values()])
        if text:
          write_whole(os.path.join(self.folder, HISTORY), text.encode())
        path = path_of(self.folder, snapshot.step)
        for suffix in _SUFFIXES:
          os.replace(os.path.join(aside, PREFIX) + suffix, path + suffix)
      self.saved_step = snapshot.step
      self.reason = ''
      try:
        self._forget_oldest(snapshot.step, orders)
      except OSError:  # Once more, since the checkpoint is there, and would not be named.
        self._forget_oldest(snapshot.step, orders)
    except (OSError, tf.errors.OpError) as error:
      is_there = self.saved_step == snapshot.step
      fault = ('is written, but cannot be named in the file checkpoint of' if is_there else
               'cannot be written to')
      self.reason = (f'the checkpoint of step {snapshot.step} {fault} {self.folder}: '
                     f'{find_reason(error)}; those before it stay')
      if self._stop_on_full_disk:
        self.error = self.reason
      else:
        self._warn('WARNING: ' + self.reason)
    finally:
      self._writing_step = None

  def _forget_oldest(self, written, orders):
    """Writes the state file, then deletes all checkpoints but the newest ones and the best.

    A checkpoint newer than the one just written is damaged, or the run would have resumed from it.
    It does not count as one to keep.
    """
    steps = [step for step in list_steps(self.folder) if step <= written]
    kept = steps[:self._keep]
    for best_first in orders:
      kept += [step for step in best_first if step in steps][:1]
    names = [f'{PREFIX}-{step}' for step in sorted(set(kept))]
    newest = f'{PREFIX}-{written}'
    state = f'model_checkpoint_path: "{newest}"\n' + ''.join(
        f'all_model_checkpoint_paths: "{name}"\n' for name in names)
    write_whole(os.path.join(self.folder, 'checkpoint'), state.encode())
    for step in set(steps) - set(kept):
      for suffix in reversed(_SUFFIXES):
        with contextlib.suppress(FileNotFoundError):  # Earlier versions wrote no sums.
          os.remove(path_of(self.folder, step) + suffix)
    _sync(self.folder)


class _Writer:
  """Writes the values of variables, in a small graph and session beside the one that trains.

  A checkpoint is a file of data, its index, and the sums of both; it exists once its index does.
  """

  def __init__(self, variables: Sequence[Any], constants: Mapping[str, np.ndarray]):
    with tf.Graph().as_default() as graph, tf.device('/device:CPU:0'):
      prefix = tf.placeholder(tf.string, [])
      values = [tf.placeholder(variable.dtype.base_dtype) for variable in variables]
      values += [tf.placeholder(constant.dtype) for constant in constants.values()]
      slices = [find_slice(variable) for variable in variables]
      op = tf.raw_ops.SaveV2(
          prefix=prefix, tensor_names=[piece.name for piece in slices] + list(constants),
          shape_and_slices=[piece.spec for piece in slices] + [''] * len(constants),
          tensors=values)
    # One thread of its own, so that writing takes none from the towers.
    self.session = tf.Session(
        graph=graph,
        config=tf.ConfigProto(device_count={'CPU': 1, 'GPU': 0}, use_per_session_threads=True,
                              inter_op_parallelism_threads=1, intra_op_parallelism_threads=1))
    self._save = self.session.make_callable(op, feed_list=[prefix] + values)

  def write(self, path: str, values: Sequence[np.ndarray]) -> None:
    """Writes data, index and their sums, down to the disk; raises OSError.

    The values are those of the variables, then of the constants.
    """
    self._save(path, *values)
    expected = sum(map(_count_bytes, values))
    written = os.path.getsize(path + DATA)
    if written != expected:
      raise OSError(None, f'{written} of {expected} bytes were written')
    write_sums(path)
    for suffix in _SUFFIXES:
      _sync(path + suffix)


def _count_bytes(value):
  value = np.asarray(value)
  if value.dtype.kind not in 'OS':
    return value.nbytes
  # Texts: the length of each in 7 bits a byte, a checksum of these, then the texts.
  lengths = [len(text) for text in value.astype(object).ravel()]
  return sum(max(1, -(-length.bit_length() // 7)) + length for length in lengths) + 4


def _sync(path: str) -> None:
  """Returns once a file or folder is on the disk."""
  handle = os.open(path, os.O_RDONLY)
  try:
    os.fsync(handle)
  finally:
    os.close(handle)
