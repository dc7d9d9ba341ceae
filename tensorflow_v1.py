"""TensorFlow as every file here sees it: the 1.x graph API, the same on 1.14 and on 2.x.

  from tensorflow_v1 import tf

All differences between the two targets stand in this file.
"""

import logging
import os
import warnings

# C++ notices about CPU instructions and missing CUDA libraries are not ours; what the user set wins.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

with warnings.catch_warnings():
  warnings.simplefilter('ignore')
  import tensorflow.compat.v1 as tf
  from tensorflow.python.ops.data_flow_ops import StagingArea

logging.getLogger('tensorflow').setLevel(logging.ERROR)
tf.disable_v2_behavior()
# The 1.14 name: every get_variable gives a resource variable, since ref variables race on CPU devices.
tf.enable_resource_variables()

__all__ = ['tf', 'StagingArea']
