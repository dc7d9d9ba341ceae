"""Best metric: which metric of validation chooses the best weights, and in which direction.

  loss, val_loss, top_5_error, rmse, wer       the smallest: the name is known
  accuracy, eval/f1_score, recall_at_10        the largest, likewise
  min:my_distance, max:my_score                as it says; any other name needs it
"""

import re
from typing import NamedTuple

# A name is cut into words, and the last of them counts: `val_loss` is a loss, `loss_scale` is none.
_KNOWN = {
    'min': ' loss losses error errors err cost mse rmse msle rmsle mae mape perplexity ppl nll '
           'xent crossentropy deviance divergence kl kld wer cer eer fid kid lpips brier bpc bpd ',
    'max': ' accuracy acc top precision recall sensitivity specificity f1 f2 auc auroc auprc ap '
           'map miou iou dice jaccard hit hits mrr ndcg bleu rouge meteor cider psnr ssim kappa '
           'mcc r2 likelihood reward '}
_PAIRS = re.compile(r'\b(cross entropy|neg(ative)? (log )?likelihood)$')  # The smallest.
# Words at the end that change no direction, and those before it that may turn it round.
_AT_END = re.compile(r'( (at|k|score|rate|mean|average|macro|micro|val|eval|test|\d+))+$')
_TURNING = re.compile(r'^1 |\b(neg|negative|minus|inverse|non|not|no)\b')


class BestMetric(NamedTuple):
  """A metric by its name, and 'min' or 'max': which of its values is the best; '' if unknown."""
  name: str
  mode: str

  def __str__(self) -> str:
    return f'{self.mode}:{self.name}'

  @property
  def sign(self) -> float:
    """The factor by which the best value is the smallest."""
    return 1.0 if self.mode == 'min' else -1.0

  def describe(self) -> str:
    """Returns it in words."""
    return f"the {'smallest' if self.mode == 'min' else 'largest'} {self.name}"


def parse_best_metric(text: str) -> BestMetric:
  """Returns the metric of 'rmse' or 'min:rmse'; `History.check_metric` refuses what is none."""
  mode, colon, name = text.partition(':')
  if colon and name and mode in ('min', 'max'):
    return BestMetric(name, mode)
  return BestMetric(text, _find_mode(text))


def _find_mode(name):
  words = _AT_END.sub('', ' '.join(re.findall('[a-z0-9]+', name.lower())))
  if _PAIRS.search(words):
    return 'min'
  if _TURNING.search(words):
    return ''
  last = words.split(' ')[-1]
  return next((mode for word in (last, last.rstrip('0123456789'))
               for mode, known in _KNOWN.items() if f' {word} ' in known), '')
