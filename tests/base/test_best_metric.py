"""Best metric: names whose direction is known, a direction that is told, and no guess."""

import pytest

from towers.base.best_metric import parse_best_metric

pytestmark = pytest.mark.plain

SMALLEST = ['loss', 'val_loss', 'my_loss', 'top5_error', 'top_5_error', 'error_rate', 'mse',
    'RMSE', 'mae', 'eval/mae', 'perplexity', 'ppl', 'wer', 'word_error_rate', 'kl',
    'kl_divergence', 'mean_squared_error', 'cross_entropy', 'negative_log_likelihood', 'nll',
    'fid_score', 'l2_loss', 'loss_mean']
LARGEST = ['accuracy', 'val_accuracy', 'accuracy_top_5', 'acc1', 'top_5', 'top5', 'top_1_accuracy',
    'recall', 'recall_at_10', 'precision@k', 'f1', 'f1_score', 'f1_macro', 'auc', 'roc_auc', 'mAP',
    'ap50', 'bleu4', 'r2', 'log_likelihood', 'hit_rate', 'ndcg@10']
UNKNOWN = ['score', 'distance', 'loss_scale', 'learning_rate', 'lossless', 'terrorism',
    'accuracy_drop', 'neg_mean_squared_error', 'negative_loss', '1-accuracy', 'inverse_psnr',
    'entropy', 'z_score', 'mapping', 'l2', 'min:', ':', '', '0', '%']


@pytest.mark.parametrize('mode, names', [('min', SMALLEST), ('max', LARGEST)])
def test_a_known_name_has_its_direction_and_takes_another(mode, names):
  assert {name: parse_best_metric(name).mode for name in names} == dict.fromkeys(names, mode)
  for name in names:
    assert str(parse_best_metric(name)) == f'{mode}:{name}'
    for told in ('min', 'max'):
      assert parse_best_metric(f'{told}:{name}') == (name, told)


@pytest.mark.parametrize('name', UNKNOWN)
def test_another_name_has_none_until_it_is_told(name):
  assert parse_best_metric(name) == (name, '')
  assert parse_best_metric(f'max:{name or "a"}').mode == 'max'
