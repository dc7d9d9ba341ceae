"""Example: TensorFlow's own kind of record, looked at before an op of TensorFlow parses it.

The parsing ops end the process over some damaged Examples (SIGSEGV), on both targets. And where an
op's error quotes bytes that are not UTF-8, 1.14 ends the process too, before Python sees the error;
2.21 raises a UnicodeDecodeError instead.
"""

import functools
from typing import Any, Tuple

from towers.base.later import tf
from towers.data.bad_records import BadRecordError


def read_example(content: bytes, kind: str = 'Example') -> Any:
  """Returns a `tf.train.Example`, or a SequenceExample; raises a BadRecordError if it is none."""
  make, decode_error = _find_types(kind)
  example = make()
  try:
    num_bytes = example.MergeFromString(content)
  except decode_error:
    # Its own message differs between versions, and says no more.
    raise _refusal(kind, 'a field is damaged, or ends behind its message') from None
  if num_bytes < len(content):  # Before protobuf 4 the end of a group that never began is no error.
    raise _refusal(kind, f'a group ends at byte {num_bytes} that never began')
  return example


def _refusal(kind, reason):
  return BadRecordError(f'its payload is no tf.train.{kind}: {reason}')


@functools.lru_cache(maxsize=None)
def _find_types(kind) -> Tuple[Any, Any]:
  """Returns the class of a kind, and the error of one that is damaged; to look is half the cost."""
  from google.protobuf.message import DecodeError

  return getattr(tf.train, kind), DecodeError


def make_quotable(content: bytes, kind: str, *, quotes: bool) -> bytes:
  """Returns a record that fails as `content` does, with an error that Python can be told.

  It is an Example or SequenceExample if `kind` says so. Where an error `quotes` texts, each of
  their bytes above 127 becomes `?`.
  """
  if content.isascii():
    return content
  if not kind:
    return _replace(content) if quotes else content
  example = read_example(content, kind)
  example.DiscardUnknownFields()  # An op might take them for damage, and quote all of it.
  if quotes:
    for feature in _list_features(example):
      if feature.HasField('bytes_list'):
        feature.bytes_list.value[:] = [_replace(value) for value in feature.bytes_list.value]
  return example.SerializeToString()


def _list_features(example):
  if hasattr(example, 'features'):
    return list(example.features.feature.values())
  sequences = example.feature_lists.feature_list.values()
  return [*example.context.feature.values(),
          *(feature for sequence in sequences for feature in sequence.feature)]


def _replace(content: bytes) -> bytes:
  return content.decode('ascii', 'replace').replace('\ufffd', '?').encode()
