"""The callbacks that docs/callbacks.md shows, as they stand there."""

import os
import sys
import types

import pytest

import towers
from tests.harness import small
from tests.test_docs import python_blocks


def train(package):
  """Runs a snippet on a small program; returns the losses by step and the last validation."""
  losses, results = {}, []

  def spied(program, *, callbacks, **settings):
    # The same run, with what it computes beside the callbacks of the snippet.
    callbacks = [*callbacks, lambda step, loss: losses.update({step: loss})]
    results.append(towers.train(program, quiet=True, callbacks=callbacks, **settings))

  program = small.program(train=small.random_examples(40), batch_size=1, num_towers=1)
  library = types.SimpleNamespace(Callback=towers.Callback, train=spied)
  [snippet] = [block for block in python_blocks(os.path.join('docs', 'callbacks.md'))
               if f'import {package}\n' in block]
  exec(snippet, dict(program=program, towers=library))
  assert list(losses) == list(range(1, 161))
  return losses, results[0]['validation_loss']


class Recorder(types.ModuleType):
  """Stands in for a package that logs by step: it keeps what it is called with."""

  def __init__(self, name):
    super().__init__(name)
    self.metrics, self.settings, self.is_open = {}, {}, False

  def __enter__(self):
    self.is_open = True

  def __exit__(self, *error):
    self.is_open = False

  def start_run(self):
    return self

  def init(self, project, config):
    self.log_params(config)
    return self

  def log_params(self, settings):
    self.settings.update(settings)

  def log_metric(self, name, value, step):
    self.log({name: value}, step)

  def log_metrics(self, metrics, step):
    self.log(metrics, step)

  def log(self, metrics, step):
    assert self.is_open
    for name, value in metrics.items():
      assert isinstance(value, float)
      self.metrics.setdefault(name, {})[step] = value


@pytest.mark.nightly(but='mlflow-validation_loss')
@pytest.mark.parametrize('package, validation', [
    ('mlflow', 'validation_loss'), ('wandb', 'validation/loss')])
def test_what_the_docs_show_keeps_losses_and_validations(package, validation, monkeypatch):
  recorder = Recorder(package)
  monkeypatch.setitem(sys.modules, package, recorder)
  losses, measured = train(package)
  assert recorder.metrics['loss'] == {100: losses[100]} and not recorder.is_open
  assert list(recorder.metrics[validation]) == [40, 80, 120, 160]
  assert recorder.metrics[validation][160] == measured
  assert recorder.settings['batch_size'] == 1
