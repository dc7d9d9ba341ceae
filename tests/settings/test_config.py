"""A wrong setting is refused with its name, value and fix; each one reaches the command line."""


import pytest

import towers.input.pipeline
import towers.placement.collectives
import towers.placement.devices
import towers.placement.variables
import towers.tower.cloning.cloner
import towers.tower.precision
from towers.base.usage_error import UsageError
from towers.cli.flags import COMMON, parse_flags
from towers.settings.config import Config
from towers.settings.setting import Count, Path, Text
from towers.settings.table import SETTINGS

NAN = float('nan')
# By kind, what no setting of it can be; below zero, none is that says what it must be.
WRONG = {int: [2.5, True, -1], Count: [2.5, 'all', -1], float: [NAN, float('inf'), True, -1.0],
         bool: ['maybe'], list: [(1.0, NAN)]}


@pytest.mark.parametrize('name', sorted(SETTINGS))
def test_a_value_that_a_setting_cannot_have_is_refused_by_name(name):
  setting = SETTINGS[name]
  for value in ['nothing'] if setting.choices else WRONG.get(setting.kind, []):
    if value == -1 and not setting.valid:
      continue
    wanted = f"choose one of {', '.join(setting.choices)}" if setting.choices else ''
    with pytest.raises(UsageError) as error:
      Config(**{name: value})
    # A text in place of a number is quoted.
    shown = value if wanted or not isinstance(value, str) else repr(value)
    assert f'{name}={shown}' in str(error.value) and wanted in str(error.value)


@pytest.mark.parametrize('settings, words', [
    (dict(batch_size=0), ['batch_size=0', 'at least 1']),
    (dict(epochs=0.0), ['epochs=0.0', 'above 0']),
    (dict(momentum=1.0), ['momentum=1', 'below 1']),
    (dict(beta1=1.0), ['beta1=1.0', 'at least 0 and below 1']),
    (dict(epsilon=0.0), ['epsilon=0.0', 'above 0']),
    (dict(min_rate=0.1), ['min_rate=0.1', 'below the peak']),
    (dict(min_rate=0.1, schedule='constant'), ['min_rate', 'no effect with schedule=constant']),
    (dict(label_smoothing=0.1, model='a:b'), ['label_smoothing=0.1', 'no effect on model=a:b']),
    (dict(average_weights=0.0), ['average_weights=0', 'above 0 and below 1', 'leave it out']),
    (dict(average_weights=1.0), ['average_weights=1', 'above 0 and below 1']),
    (dict(staging_depth=3), ['staging_depth=3', '0, 1 or 2']),
    (dict(num_classes=1), ['num_classes=1', 'at least 2']),
    (dict(steps=1, epochs=1.0), ['steps=1', 'epochs=1.0', 'one of them']),
    (dict(loss_scale=2.0), ['loss_scale=2.0', 'precision=float32', 'precision=mixed']),
    (dict(autotune=True, check=True), ['autotune', 'check', 'one of them']),
    (dict(find_batch=True, check=True), ['check and find_batch', 'one of them']),
    (dict(tower_megabytes=100.0), ['tower_megabytes=100', 'without find_batch']),
    (dict(find_batch=True, tower_megabytes=100.0, gpu_memory='growth'),
     ['tower_megabytes=100', 'gpu_memory=growth', 'one of them']),
    (dict(data_format='NCHW', check=True), ['data_format=NCHW', 'check', 'data_format=NHWC']),
    (dict(schedule='piecewise'), ['schedule=piecewise', 'decay_epochs']),
    (dict(schedule='exponential', decay_epochs=(1.0, 2.0)), ['one number', '2']),
    (dict(schedule='cosine', decay_epochs=(1.0,)), ['decay_epochs=1', 'cosine']),
    (dict(schedule='piecewise', decay_epochs=(6.0, 3.0)), ['decay_epochs=6,3', 'rise']),
    (dict(validate_every='often'), ['validate_every=often', '500steps']),
    (dict(validate_every='1.5steps'), ['validate_every=1.5steps']),
    (dict(validate_every='60seconds'), ['validate_every=60seconds', 'steps or epochs']),
    (dict(checkpoint_every='0seconds'), ['checkpoint_every=0seconds', '600seconds']),
    (dict(on_nan='rollback'), ['on_nan=rollback', 'checkpoint_dir']),
    (dict(early_stopping=3, validation='none'), ['early_stopping=3', 'validation'])])
def test_wrong_settings_are_named_with_their_fix(settings, words):
  with pytest.raises(UsageError) as error:
    Config(**settings)
  for word in words:
    assert word in str(error.value)


PATHS = [name for name, setting in SETTINGS.items() if setting.kind is Path]


def test_every_setting_of_text_says_whether_it_names_a_path():
  assert set(PATHS) >= {'data_dir', 'checkpoint_dir', 'result_file', 'summary_dir', 'report',
                        'trace_file', 'export_dir', 'predict'}
  for name, setting in SETTINGS.items():
    assert setting.kind is not str or setting.choices
    # A name that says so is not free text.
    assert setting.kind is not Text or not name.endswith(('_dir', '_file', '_path'))


@pytest.mark.parametrize('name', PATHS)
def test_a_path_on_another_file_system_is_refused_for_every_setting(name):
  with pytest.raises(UsageError, match=f'^{name}=hdfs://nn/x names another file system'):
    Config(**{name: 'hdfs://nn/x'})
  with pytest.raises(UsageError, match=f'{name}=/x'):
    Config(**{name: 'file:///x'})
  with pytest.raises(UsageError, match=f'{name}=3: it must be a path'):
    Config(**{name: 3})
  # A drive is no scheme.
  others = dict(checkpoint_dir='runs') if name in ('export_dir', 'predict') else {}
  assert getattr(Config(**{name: 'C:\\x', **others}), name) == 'C:\\x'


def test_the_rate_follows_the_optimizer_unless_given():
  rates = [Config(optimizer=optimizer).peak_learning_rate()
           for optimizer in ('sgd', 'momentum', 'adam', 'lamb', 'rmsprop', 'lars')]
  assert rates == [0.05, 0.05, 0.001, 0.001, 0.01, 1]
  assert Config(optimizer='adam', learning_rate=0.3).peak_learning_rate() == 0.3


def test_choices_are_those_of_the_library():
  choices = {name: setting.choices for name, setting in SETTINGS.items()}
  assert choices['input_mode'] == towers.input.pipeline.INPUT_MODES
  assert choices['variables'] == towers.placement.variables.PLACEMENTS
  assert choices['precision'] == towers.tower.precision.PRECISIONS
  assert choices['collective'] == towers.placement.collectives.COLLECTIVES
  assert choices['device'] == towers.placement.devices.DEVICE_KINDS
  assert choices['wire'] == towers.placement.collectives.WIRES
  assert choices['tower_build'] == towers.tower.cloning.cloner.TOWER_BUILDS


def test_flags_become_a_config_and_defaults_are_the_configs():
  assert parse_flags(['main.py']) == Config()
  assert parse_flags([
      'main.py', '--input_mode=shard', '--num_gpus=8', '--noshuffle', '--deterministic',
      '--learning_rate=1e-3', '--schedule=piecewise', '--decay_epochs=3,4.5', '--steps', '12',
  ]) == Config(input_mode='shard', num_towers=8, shuffle=False, deterministic=True,
               learning_rate=0.001, schedule='piecewise', decay_epochs=(3.0, 4.5), steps=12)


def test_help_names_every_flag_and_the_short_one_fits_a_screen(capsys):
  assert parse_flags(['main.py', '--help']) is None
  shown = capsys.readouterr().out
  assert all('--' + name in shown for name in SETTINGS)
  assert parse_flags(['main.py', '--helpshort']) is None
  short = capsys.readouterr().out
  assert [name for name in COMMON if '  --' + name not in short] == []
  assert 24 <= len(short.splitlines()) <= 40 and max(map(len, (shown + short).splitlines())) <= 120
  # Both in the order of the data path.
  groups = [line for line in shown.splitlines() if line.endswith(':')]
  assert groups[:6] == ['data:', 'inputs:', 'towers:', 'workers, from TF_CONFIG:',
                        'weight update:', 'loop:']
  del groups[3]  # Not used most.
  assert [line for line in short.splitlines() if line.endswith(':')] == groups
