"""Padding: examples of unequal sizes, such as sentences, are padded where they become a batch."""

from typing import Any, Union

from towers.base.usage_error import UsageError
from towers.data.examples import Examples, Padding


def padded(examples: Examples, pad_to: Union[int, str] = 'batch', values: Any = None) -> Examples:
  """Returns the split with batches that are padded at the end of each dimension of unknown size.

  With a number all batches have one size, so that any model on N towers equals one tower. With
  'batch' a batch is as large as its largest example, whose size differs between micro-batches and
  workers, and in the mode `shard` between towers. Then the model's result must not depend on the
  padding: return `towers.Weighted` with weights of 0 there.

  Args:
    examples: whose `elements`, `parse_example` or `read` give tensors of unknown sizes.
    pad_to: 'batch', or a number from 1 on; an example that is larger is an error.
    values: of the padding, see `Padding`.

  Raises:
    UsageError: another pad_to.
  """
  if pad_to != 'batch' and (not isinstance(pad_to, int) or isinstance(pad_to, bool) or pad_to < 1):
    raise UsageError(f"pad_to is {pad_to!r}: choose 'batch', or a number from 1 on.")
  return examples._replace(padding=Padding(pad_to, values), hold=None,
                           read=examples.read_unequal or examples.read)
