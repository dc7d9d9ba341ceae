"""Bytes of an Example are those of TensorFlow's own classes, and others are refused."""

import hypothesis
import hypothesis.strategies as st
import pytest

from towers.data.bad_records import BadRecordError
from towers.data.formats.example import read_example
from towers.tensorflow_v1 import tf
from towers_data.labelled_example import decode_labelled, encode_example

features = st.dictionaries(st.text(max_size=20),
                           st.one_of(st.binary(max_size=300), st.integers(-2**63, 2**63 - 1)),
                           max_size=4)


@pytest.mark.nightly
@hypothesis.settings(max_examples=200, deadline=None, derandomize=True)
@hypothesis.given(features)
def test_tensorflow_reads_what_is_written(values):
  example = tf.train.Example.FromString(encode_example(values))
  assert set(example.features.feature) == set(values)
  for name, value in values.items():
    feature = example.features.feature[name]
    assert list(feature.bytes_list.value or feature.int64_list.value) == [value]


@pytest.mark.parametrize('label, found', [
    (tf.train.Feature(), '0 times, and there are image/class/label, image/encoded'),
    (tf.train.Feature(float_list=tf.train.FloatList(value=[0.5])), '1 times, of float'),
    (tf.train.Feature(int64_list=tf.train.Int64List(value=[1, 2**62])), '2 times, of int')])
def test_a_label_of_another_kind_is_said(label, found):
  image = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b'image']))
  example = tf.train.Example(features=tf.train.Features(feature={
      'image/encoded': image, 'image/class/label': label}))
  with pytest.raises(BadRecordError, match=f'needed once, of int; it is there {found}'):
    decode_labelled(example.SerializeToString(), num_classes=3, first_label=0)


@pytest.mark.parametrize('content', [b'\x0a', b'\x0a\xff', b'\xff' * 12, b'\x0b', b'\x0a\x05abc',
    b'\x09abc',
                                     # The end of a group that never began, between two Examples or
                                     # within one.
                                     encode_example({'n': 1}) + b'\x0c' + encode_example({'m': 2}),
                                     b'\x0a\x01\x0c'])
def test_other_bytes_are_refused(content):
  with pytest.raises(ValueError):
    read_example(content)


@pytest.mark.parametrize('content', [
    b'\x0a\x03\x12\x05a' +
    b'\x12\x03bcd',  # A field that ends behind its message, though within the Example.
    # So does a number: the last of a list, which ends after 0x80.
    b'\x0a\x0c\x0a\x0a\x0a\x01n\x12\x05\x1a\x03\x0a\x01\x80' + b'\x12\x01a'])
def test_nothing_reaches_beyond_the_message_that_it_stands_in(content):
  with pytest.raises(ValueError, match='ends'):
    read_example(content)
