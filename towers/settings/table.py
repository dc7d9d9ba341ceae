"""Settings: every one once, with its default, its help, what it may be and whose it is.

The arguments that `towers.Program` and `towers.train` check, `Config`, the flags, their help and
the list of flags in docs/running.md are all made from this table. Nothing here imports TensorFlow,
so a mistake shows before anything expensive starts.
"""

import difflib
import functools
from typing import Any, Dict, List, Mapping, Sequence

from towers.data import DATA_SETS
from towers.data.augmented import KINDS
from towers.data.bad_records import POLICIES
from towers.models import DATA_FORMATS, MODELS
from towers.settings.setting import Count, Function, Path, Setting, Text
from towers.tower.recomputing.segments import parse_recompute


def _at_least(least):
  return lambda value: '' if value >= least else f'at least {least}'


def _above_zero(value):
  return '' if value > 0 else 'above 0'


def _share(value):
  return '' if 0 <= value < 1 else 'at least 0 and below 1'


def _decay(value):
  return '' if 0 < value < 1 else (
      'above 0 and below 1, such as 0.9999; leave it out for no averages')


def _depth(value):
  return '' if value in (0, 1, 2) else '0, 1 or 2'


def _recomputed(value):
  parse_recompute(value)
  return ''


_program = functools.partial(Setting, 'program')
_run = functools.partial(Setting, 'run')
_command = functools.partial(Setting, 'command')

# In the order in which the data goes, under the headings of the help.
GROUPS = {
    'data': (
        _command('data', Function, 'sample', 'data set, or your module:function', tuple(DATA_SETS)),
        _command('data_dir', Path, None, 'folder with the files of the data set, if it has any',
                 whose='own'),
        _command('image_size', int, None,
                 "images, tfrecord, tfds: pixels per side; default: the data's own, or 224",
                 _at_least(1)),
        _command('num_classes', int, None,
                 "tfrecord, npy: number of classes; default: the data's own, or 1000",
                 _at_least(2)),
        _command('first_label', int, None,
                 "tfrecord: label of class 0; default: the data's own, or 1", _at_least(0)),
        _command('max_image_pixels', int, 64000000, 'an image with more is a bad record',
                 _at_least(1)),
        _command('on_bad_record', str, 'fail',
                 'end the run at a damaged record, or skip and log it', POLICIES),
        _command('augment', str, 'none',
                 'cifar: pad, crop, mirror; imagenet: resized crop, mirror', KINDS),
        _program('batch_size', int, 64, 'global batch: examples per step, over all towers',
                 _at_least(1)),
        _program('shuffle', bool, True,
                 'reshuffle the training split in every epoch; --noshuffle keeps its order'),
        _program('accumulate', Count, 1,
                 'micro-batches per step: more of them take less memory; auto: as many as fit',
                 _at_least(1)),
        _program('last_batch', str, 'auto',
                 'of an epoch, if it is smaller: as it is; filled up, for one shape; left out; '
                 'filled up from the next epoch; auto: carry for a new run with XLA, else keep',
                 ('auto', 'keep', 'pad', 'drop', 'carry')),
    ),
    'inputs': (
        _program('input_mode', str, 'split',
                 'one batch, split; get_next per tower; iterator per tower',
                 ('split', 'next', 'shard')),
        _program('staging_depth', int, 1, "batches staged ahead on each tower's device: 0, 1 or 2",
                 _depth),
        _program('input_threads', int, None, 'examples parsed in parallel; default: one per core',
                 _at_least(1), whose='own'),
        _command('input_only', bool, False,
                 'measure the input modes without towers; train nothing'),
    ),
    'towers': (
        _program('num_towers', int, None,
                 'towers, one per GPU; default: all GPUs, or 2 virtual CPU devices', _at_least(1),
                 whose='own', alias='num_gpus'),
        _program('device', str, 'auto', 'auto: GPUs if there are any, else virtual CPU devices',
                 ('auto', 'gpu', 'cpu'), whose='own'),
        _program('logical_gpus', int, None,
                 'divide one GPU into this many, a tower on each; needs gpu_memory'),
        _program('gpu_memory', Text, None,
                 'of each GPU: growth, a fraction such as 0.4, or megabytes; default: all'),
        _command('tf32', str, 'on', 'round factors of float32 products on GPUs from Ampere on',
                 ('on', 'off')),
        _command('model', Function, 'convnet', 'model of every tower, or your module:function',
                 tuple(MODELS)),
        _command('label_smoothing', float, 0.0,
                 'share of each training label that is spread over all classes', _share),
        _command('drop_path', float, 0.0,
                 'NASNet: share of paths dropped in the last cell; less in earlier ones', _share),
        _command('data_format', str, 'NHWC', 'layout of images in the model; NCHW needs GPUs',
                 DATA_FORMATS),
        _program('tower_build', str, 'auto',
                 "reuse: call the model for each tower; clone: copy the first tower's graph; "
                 'auto: clone deep models', ('reuse', 'clone', 'auto'), whose='own'),
        _run('graph_rewriter', str, 'auto',
             'let TensorFlow optimize the graph (Grappler); auto: on GPUs, or with XLA',
             ('auto', 'on', 'off'), whose='own'),
        _command('xla', str, 'auto',
                 'compile with XLA; auto: as TF_XLA_FLAGS says, else mixed precision on GPUs',
                 ('auto', 'on', 'off'), whose='own'),
        _run('inter_threads', int, None,
             'ops run in parallel; default: one per core, or per tower if more', _at_least(1),
             whose='own'),
        _run('intra_threads', int, None, 'threads within one op; default: the cores of its tower',
             _at_least(1), whose='own'),
        _program('variables', str, 'auto',
                 'where they live; auto: on the only GPU, a replica on each of several, else host',
                 ('auto', 'host', 'first', 'balanced', 'replicated')),
        _program('collective', str, 'auto',
                 'all-reduce of replicas; auto: nccl on GPUs, else ring', ('auto', 'ring', 'nccl')),
        _program('fusion_megabytes', float, 4.0,
                 'megabytes of gradients in one all-reduce; 0: no fusion', _at_least(0)),
        _program('precision', str, 'float32',
                 'mixed: compute in 16 bits, keep weights in float32', ('float32', 'mixed')),
        _program('loss_scale', float, None,
                 'for precision=mixed; default: dynamic, or 1 for bfloat16', _above_zero),
        _program('recompute', Text, 'none', 'activations computed again to save memory: auto, a '
                 'number of segments, or names of ops, as block_1/', _recomputed),
        _program('batch_norm', str, 'first',
                 'averages of tower 0; of all towers; synchronized moments',
                 ('first', 'mean', 'sync')),
        _command('init_from', Path, None,
                 'checkpoint or .h5 file to start from, unless checkpoint_dir has a checkpoint',
                 whose='own'),
        _command('init_map', Text, None,
                 'names in that file to names in the model, as resnet/=model/'),
        _command('reinit', Text, None,
                 'patterns of variables that start anew all the same, as logits/'),
    ),
    'workers, from TF_CONFIG': (
        _program('wire', str, 'float32',
                 'in what gradients cross between workers; on 2.x, 16 bits halve the bytes',
                 ('float32', 'float16', 'bfloat16')),
        _run('start_seconds', float, 300.0, 'seconds to wait for all workers at the start',
             _above_zero, whose='own'),
        _run('worker_seconds', float, 20.0,
             'seconds of silence from another worker, after which the run ends', _above_zero,
             whose='own'),
    ),
    'weight update': (
        _command('optimizer', str, 'momentum', 'optimizer',
                 ('sgd', 'momentum', 'nesterov', 'rmsprop', 'adam', 'adamw', 'lars', 'lamb')),
        _command('learning_rate', float, None, 'peak learning rate; default: by the optimizer',
                 _above_zero),
        _command('momentum', float, 0.9, 'for momentum, nesterov, rmsprop and lars', _share),
        _command('beta1', float, 0.9, 'share of the first moment kept, for adam, adamw and lamb',
                 _share),
        _command('beta2', float, 0.999, 'share of the second moment kept, for the same', _share),
        _command('rms_decay', float, 0.9, 'share of the mean square kept, for rmsprop', _share),
        _command('epsilon', float, None,
                 'in the divisor; default: 1e-8 for adam and adamw, 1e-6 for lamb, 1 for rmsprop',
                 _above_zero),
        _command('frozen', Text, None, 'patterns of variables that stay as they are, as encoder/'),
        _command('rate_factors', Text, None,
                 'what multiplies the rate of some variables, as encoder/=0.1'),
        _program('clip_norm', float, None, 'largest global norm of gradients; default: no clipping',
                 _above_zero),
        _program('weight_decay', float, 0.0, 'factor by which each matrix or kernel is added to '
                 'its clipped gradient; adamw: taken off the weight', _at_least(0)),
        _program('average_weights', float, None,
                 'decay of moving averages of the weights, to validate and export; as 0.9999',
                 _decay),
        _command('schedule', str, 'cosine', 'learning rate over the examples seen',
                 ('constant', 'piecewise', 'exponential', 'cosine')),
        _command('warmup_epochs', float, 0.0, 'epochs in which the learning rate rises from 0',
                 _at_least(0)),
        _command('decay_epochs', list, (),
                 'epochs at which the rate falls, as 30,60; exponential: epochs per fall'),
        _command('decay_rate', float, 0.1, 'factor of each fall of the learning rate', _above_zero),
        _command('min_rate', float, 0.0, 'below which no schedule falls', _at_least(0)),
    ),
    'loop': (
        _run('epochs', float, None, 'passes over the training split; default: 5', _above_zero),
        _run('steps', int, None, 'weight updates, instead of epochs', _at_least(1)),
        _command('validation', str, 'switch', 'by all towers in turn; never', ('switch', 'none')),
        _program('validation_tower', bool, False, 'the last tower validates while the others '
                 'train; also --validation=tower'),
        _run('validate_every', Text, '1epoch', 'how often to validate, as 500steps or 2epochs'),
        _run('checkpoint_dir', Path, None,
             'folder to save to, and to resume from if it has a checkpoint', whose='own'),
        _run('checkpoint_every', Text, '1epoch',
             'how often to save, as 500steps, 2epochs or 600seconds'),
        _run('keep_checkpoints', int, 5, 'newest checkpoints to keep, besides the best one',
             _at_least(1), whose='own'),
        _run('new_data', bool, False, 'go on with a checkpoint of other training data: weights, '
             'slots and step stay'),
        _run('best_metric', Text, 'loss', 'metric of the best validation, as accuracy or rmse; '
             'min:name and max:name give the direction'),
        _run('early_stopping', int, None,
             'stop after this many validations in a row without a new best', _at_least(1)),
        _run('on_full_disk', str, 'warn', 'when a checkpoint cannot be written', ('warn', 'stop'),
             whose='own'),
        _run('on_nan', str, 'stop', 'when the loss or a gradient is not finite',
             ('stop', 'skip', 'rollback')),
        _run('max_seconds', float, None,
             'seconds in which the run validates, saves and exits with 0, to go on later',
             _above_zero, whose='own'),
        _run('stall_seconds', float, 300.0,
             'seconds without progress, after which the run ends and says why', _above_zero,
             whose='own'),
        _program('seed', int, 0, 'for initial weights, shuffling and dropout'),
        _command('deterministic', bool, False,
                 'only kernels that repeat to the bit, at some cost in speed'),
        _command('autotune', bool, False,
                 'find the fastest settings in short trials, then train with them'),
        _command('check', bool, False, 'compare the towers with one tower, on CPUs unless '
                 'device=gpu; train nothing'),
        _run('result_file', Path, None, 'file for the result, as one JSON object', whose='chief'),
    ),
    'reporting': (
        _run('quiet', bool, False,
             'a run that trains writes warnings alone; its result is in result_file', whose='own'),
        _run('summary_dir', Path, None, 'folder for TensorBoard: curves, text and graph',
             whose='chief'),
        _run('report', Path, None, 'HTML page to write: curves, times, devices, settings',
             whose='chief'),
        _run('summary_every', Text, '0.1epochs',
             'how often to sample the curves, as 500steps or 0.1epochs'),
        _run('trace_steps', Text, None, 'steps to trace op by op, as 10:12', whose='chief'),
        _run('trace_file', Path, 'trace.json',
             'file for the trace, for chrome://tracing or Perfetto', whose='own'),
    ),
    'tools': (
        _command('doctor', bool, False,
                 'examine this machine and report what is wrong; train nothing'),
        _command('find_batch', bool, False,
                 'find the largest batch per tower that fits into memory; train nothing'),
        _command('tower_megabytes', float, None,
                 'find_batch: what a tower may take; default: what its device has', _above_zero),
        _command('export_dir', Path, None, 'folder for the best weights as a SavedModel',
                 whose='chief'),
        _command('predict', Path, None,
                 '.npy or .npz file, or folder of images, to predict, instead of training'),
    ),
}
SETTINGS = {setting.name: setting for group in GROUPS.values() for setting in group}
# What other libraries call a setting.
_IN_OTHERS = {
    'patience': 'early_stopping', 'monitor': 'best_metric', 'max_steps': 'steps',
    'num_steps': 'steps', 'save_every': 'checkpoint_every', 'model_dir': 'checkpoint_dir',
    'log_dir': 'summary_dir', 'logdir': 'summary_dir', 'verbose': 'quiet',
    'shuffle_buffer': 'shuffle', 'buffer_size': 'shuffle'}


def arguments_of(of: str) -> Dict[str, Setting]:
  """Returns the settings that `towers.Program` ('program') or `towers.train` ('run') take."""
  return {name: setting for name, setting in SETTINGS.items() if setting.of == of}


def common_to_workers(settings: Mapping[str, Any]) -> Dict[str, Any]:
  """Returns, of settings by their names, those that all workers of a cluster must share."""
  return {name: value for name, value in settings.items()
          if name not in SETTINGS or SETTINGS[name].whose == 'all'}


def find_meant(typed: str, names: Sequence[str]) -> List[str]:
  """Returns the names that someone may have meant, at most three, the likeliest first.

  What other libraries call them; names of similar letters, with the word in them, or of these
  initials: `lr` is learning_rate.
  """
  typed = typed.lower().replace('-', '_')
  bare = typed[len('no'):] if typed.startswith('no') else typed
  similar = difflib.get_close_matches(bare, names, cutoff=0.75)
  initials = [name for name in names if ''.join(word[0] for word in name.split('_')) == typed]
  within = [name for name in names if set(bare.split('_')) <= set(name.split('_'))]
  called = [name for name in names if name == _IN_OTHERS.get(typed)]
  return list(dict.fromkeys(called + similar + initials + within))[:3]
