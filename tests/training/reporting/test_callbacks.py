"""The callbacks that docs/callbacks.md shows, as they stand there."""

import os
import sys
import types
from unittest import mock

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


NAMES = dict(mlflow='start_run log_params log_metric log_metrics', wandb='init log')


@pytest.mark.nightly(but='mlflow-validation_loss')
@pytest.mark.parametrize('package, validation', [
    ('mlflow', 'validation_loss'), ('wandb', 'validation/loss')])
def test_what_the_docs_show_keeps_losses_and_validations(package, validation, monkeypatch):
  module, logged = mock.MagicMock(spec=NAMES[package].split()), {}
  monkeypatch.setitem(sys.modules, package, module)
  losses, measured = train(package)
  for _, given, named in module.mock_calls:
    if 'step' in named:
      for name, value in (given[0] if len(given) == 1 else dict([given])).items():
        assert isinstance(value, float)
        logged.setdefault(name, {})[named['step']] = value
  assert logged['loss'] == {100: losses[100]}
  assert list(logged[validation]) == [40, 80, 120, 160] and logged[validation][160] == measured
  calls = [name for name, _, _ in module.mock_calls]
  assert calls[0] in ('start_run', 'init') and calls[-1] == f'{calls[0]}().__exit__'
  settings = module.log_params.call_args[0][0] if package == 'mlflow' else (
      module.init.call_args[1]['config'])
  assert settings['batch_size'] == 1
