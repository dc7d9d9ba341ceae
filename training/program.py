"""The program: the graph from its feeds to the update, as `main.py` builds it and everything after runs it."""

from typing import Any, NamedTuple, Optional

from towers import Averaged, Copies, Feed, Precision, Spread, Validation


class Program(NamedTuple):
  """The graph, from its feeds to the update: what a loop runs, and what a reader may want to look at.

  Attributes:
    train: the feed of the training split.
    averaged: the towers, and their mean loss and gradients over the global batch.
    learning_rate: of the next step, a scalar tensor or a float.
    train_op: updates all weights once; with a guard, a scalar bool that says whether it did.
    validation: what a run on validation batches fetches, or None.
    input_wait: seconds that a run with `train_op` waited for input, a scalar tensor.
    add_wait: with accumulation, the same of a run with `averaged.add_op`.
    gradient_norm: global, of the averaged gradients before they are clipped; None where nobody asks.
    copies: of the variables on every tower, or None where all towers share them.
    precision: that towers compute in, or None for float32.
    spread: how the chief's state becomes that of all workers; None for one worker.
  """
  train: Feed
  averaged: Averaged
  learning_rate: Any
  train_op: Any
  validation: Optional[Validation] = None
  input_wait: Any = None
  add_wait: Any = None
  gradient_norm: Any = None
  copies: Optional[Copies] = None
  precision: Optional[Precision] = None
  spread: Optional[Spread] = None

  @property
  def needs_threads(self) -> bool:
    """Whether the input of any split does, see `towers.Inputs`, or is not staged.

    What is not staged is followed by the towers' ops in one thread, and the time that it came at would be told late.
    """
    feeds = [self.train] if self.validation is None else [self.train, self.validation.feed]
    return any(feed.inputs.needs_threads or feed.stage is None for feed in feeds)
