"""Load: programs import TensorFlow before this or after it, and have resource variables."""

import pytest

import towers
from tests.harness import small
from tests.harness.processes import output_of, run_python
from towers.tensorflow_v1 import tf

IMPORTS = {'tensorflow first': 'import tensorflow.compat.v1 as tf\nimport towers\ntowers.Program\n',
           'towers first': 'import towers\ntowers.Program\nimport tensorflow.compat.v1 as tf\n'}
PROGRAM = '''
tf.disable_v2_behavior()
import numpy as np
scale = tf.get_variable('scale', [], initializer=tf.ones_initializer())
def model(batch, is_training):
  return tf.square(tf.reduce_sum(batch[0], 1) * scale - 1)
program = towers.Program(model, train=towers.from_arrays(np.ones([8, 3], 'f')), batch_size=4,
                         num_towers=2, device='cpu', optimizer=tf.train.AdamOptimizer(0.5))
with program.session() as session:
  print(session.train(), session.run(scale).round(4))
'''
IMPORT_AT_A_DEPTH = '''
import resource, sys
def load(depth):
  if depth:
    load(depth - 1)
  else:
    import towers.tensorflow_v1
load(int(sys.argv[1]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
'''


@pytest.mark.parametrize('order', IMPORTS)
def test_tensorflow_and_towers_are_imported_in_any_order(order):
  lines = output_of('-c', IMPORTS[order] + PROGRAM).splitlines()
  assert lines[-1].split() == ['4.0', '0.5']


def test_an_import_asks_for_as_much_memory_at_any_depth_of_calls():
  shallow, deep = (int(output_of('-c', IMPORT_AT_A_DEPTH, depth)) for depth in ('24', '48'))
  assert abs(deep - shallow) < 2000  # Page faults.


def test_disable_v2_behavior_leaves_resource_variables_on():
  try:
    tf.disable_v2_behavior()
    with tf.Graph().as_default():
      assert tf.get_variable('made', []).dtype == tf.float32  # And not float32_ref.
  finally:
    tf.enable_resource_variables()


def test_a_ref_variable_is_refused_with_the_line_to_write():
  def model(batch, is_training):
    return tf.cast(batch, tf.float32) * scale

  with tf.Graph().as_default():
    scale = tf.get_variable('scale', [], use_resource=False)
    with pytest.raises(towers.UsageError, match=r'scale: .* tf.enable_resource_variables\(\)'):
      towers.Program(model, train=small.id_examples(8), batch_size=4, num_towers=2, device='cpu',
                     optimizer=tf.train.AdamOptimizer())


def test_a_program_makes_tensors_from_the_line_after_both_imports():
  lines = output_of('-c', 'import tensorflow.compat.v1 as tf\nimport towers\n'
                    'given = tf.placeholder(tf.float32, [], "given")\nprint(given.op.name)')
  assert lines.splitlines()[-1] == 'given'


def test_a_program_that_takes_tensorflow_by_a_former_name_goes_on_and_is_told_the_line():
  done = run_python('-c', 'import sys, towers\n'
                    'assert "tensorflow" not in sys.modules\n'
                    'from tensorflow_v1 import StagingArea, tf\n'
                    'import towers.tensorflow_v1\n'
                    'assert tf is towers.tensorflow_v1.tf, tf')
  assert done.returncode == 0
  assert done.stderr == ('tensorflow_v1 is a part of towers now: write import '
                         'tensorflow.compat.v1 as tf\n')
