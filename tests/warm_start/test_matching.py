"""Which tensor starts which variable: by name, by patterns, by a function; or an error names it."""

import re

import numpy as np
import pytest

from towers.base.usage_error import UsageError
from towers.placement.patterns import parse_pairs
from towers.tensorflow_v1 import tf
from towers.warm_start.matching import init_from, match
from towers.warm_start.slices import Tensor


def infos(dtype=np.float32, **shapes):
  return {name.replace('__', '/'): Tensor(tf.TensorShape(shape), tf.as_dtype(dtype))
          for name, shape in shapes.items()}


TENSORS = infos(resnet__conv__weights=(3, 4), resnet__logits__weights=(4, 10), global_step=())
VARIABLES = infos(model__conv__weights=(3, 4), model__logits__weights=(4, 3),
                  model__head__biases=(3,))


@pytest.mark.parametrize('names', [
    {'resnet/': 'model/'}, {r'(res)(net)': 'model'},
    {'x?resnet/(?=conv)': 'model/', 'resnet/': 'model/'},
    lambda name: name.replace('resnet', 'model'),
    lambda name: 'model/' + name[7:] if name.startswith('resnet') else None])
def test_names_lead_to_variables(names):
  matches = match(init_from('file', names=names, reinit='model/logits'), TENSORS, VARIABLES)
  assert matches.source == {'model/conv/weights': 'resnet/conv/weights'}
  assert matches.new == ['model/head/biases'] and matches.anew == ['model/logits/weights']
  assert matches.left_over == ['global_step']
  [line] = matches.differ
  assert '[4, 10] float32 in the file, [4, 3] float32 in the program' in line
  assert [row.split()[:2] for row in matches.format().splitlines()] == [
      ['matched', '1'], ['new', '1'], ['reinit', '1'], ['left', 'over'], ['shape', 'differs']]


def test_a_renamed_tensor_comes_before_one_that_has_the_name():
  """So that averaged weights can stand in for the last ones."""
  tensors = infos(w=(2,), w__average=(2,))
  matches = match(init_from('file', names={'(.*)/average': r'\1'}), tensors, infos(w=(2,)))
  assert matches.source == {'w': 'w/average'} and matches.left_over == ['w']


@pytest.mark.parametrize('names, reinit, message', [
    ({'resnt/': 'model/'}, [], r"names=\{'resnt/': 'model/'\} matches no tensor of file"),
    ({'resnet/': 'modl/'}, [], r'makes modl/conv/weights, .*and the program has no such variable'),
    ({'resnet/': 'model/', 'resnet/c': 'x'}, [], "resnet/c': 'x'} matches no tensor"),
    ({'resnet/.*': 'model/conv/weights'}, [], 'names gives model/conv/weights two tensors'),
    ({'(resnet': 'x'}, [], 'names=.resnet is no regular expression'),
    ({'resnet/': r'\2'}, [], "names={'resnet/': "),
    ({'resnet/': 'model/'}, ['logit'], 'reinit=logit matches no variable of the model'),
    ({'resnet/': 'model/'}, ['*'], r'reinit=\* is no regular expression'),
    ({'resnet/': 'model/'}, [], r'does not fit the program:\n  model/logits/weights \[4, 10\].*'
     r'\n.*reinit=model/logits'),
    (None, [], r'starts no variable: the file has .* Map the names, as init_map=.*names=\{')])
def test_what_does_not_fit_is_refused(names, reinit, message):
  with pytest.raises(UsageError, match=re.compile(message)):
    match(init_from('file', names=names, reinit=reinit), TENSORS, VARIABLES)


def test_a_dtype_of_another_kind_is_refused_and_another_size_is_cast():
  variables = infos(w=(2,))
  assert match(init_from('file'), infos(np.float64, w=(2,)), variables).source == {'w': 'w'}
  assert match(init_from('file'), infos(np.float16, w=(2,)), variables).source == {'w': 'w'}
  with pytest.raises(UsageError, match='complex64 in the file, .* float32 in the program'):
    match(init_from('file'), infos(np.complex64, w=(2,)), variables)


def test_the_flag_is_pairs_with_commas():
  def parse(text):
    return parse_pairs('init_map', text, like='resnet/=model/')

  assert parse('resnet/=model/,a=b=c') == {'resnet/': 'model/', 'a': 'b=c'}
  assert parse(None) == {}
  with pytest.raises(UsageError, match="init_map=resnet/: 'resnet/' has no =.*as resnet/=model/"):
    parse('resnet/')
  with pytest.raises(UsageError, match=r'init_map=\(resnet is no regular expression'):
    parse('(resnet=model')
