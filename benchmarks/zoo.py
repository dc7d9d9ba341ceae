"""The models of the zoo beside what was published of them: weights, ops, multiply-adds of an image.

  python -m benchmarks.zoo                        # a table; a minute
  python -m benchmarks.zoo --models=resnet50,nasnet_large

Counted on the graph of one image in inference, so there is nothing to time. A multiply-add is what
papers about these models count, and some call it one operation: the products of all convolutions
and dense layers.
"""

import argparse
from typing import Any, Dict, NamedTuple, Optional

from benchmarks.harness.flags import one_of, several
from models import MODELS

_PAPER = 'Zoph et al. 2018, tables 2 and 3'
_TORCHVISION = "torchvision's table of weights"


class Published(NamedTuple):
  """What is known of a model.

  Attributes:
    size: height and width of an image.
    num_classes: of the logits.
    millions: weights, in millions, batch norm's scales and offsets among them; None if unknown.
    billions: multiply-adds of an image, in billions, likewise.
    source: of both.
  """
  size: int
  num_classes: int
  millions: Optional[float] = None
  billions: Optional[float] = None
  source: str = ''


PUBLISHED = {
    'alexnet': Published(224, 1000, 61.1, 0.71, _TORCHVISION),
    'vgg16': Published(224, 1000, 138.4, 15.47, _TORCHVISION),
    'vgg19': Published(224, 1000, 143.7, 19.63, _TORCHVISION),
    'resnet20': Published(32, 10, 0.27, source='He et al. 2016, table 6'),
    'resnet32': Published(32, 10, 0.46, source='He et al. 2016, table 6'),
    'resnet56': Published(32, 10, 0.85, source='He et al. 2016, table 6'),
    'resnet110': Published(32, 10, 1.7, source='He et al. 2016, table 6'),
    'resnet50': Published(224, 1000, 25.6, 4.09, _TORCHVISION),
    'resnet101': Published(224, 1000, 44.5, 7.80, _TORCHVISION),
    'resnet152': Published(224, 1000, 60.2, 11.51, _TORCHVISION),
    'nasnet_cifar': Published(32, 10, 3.3, source='Zoph et al. 2018, table 1'),
    'nasnet_mobile': Published(224, 1000, 5.3, 0.564, _PAPER),
    'nasnet_large': Published(331, 1000, 88.9, 23.8, _PAPER),
}
# Of the others no paper gives a count.
_UNPUBLISHED = {name: Published(32, 10) for name in MODELS if name not in PUBLISHED}


def count(name: str) -> Dict[str, Any]:
  """Builds a model for one image in a graph of its own; returns a line of the table."""
  import models
  from tensorflow_v1 import tf

  published = {**PUBLISHED, **_UNPUBLISHED}[name]
  with tf.Graph().as_default() as graph:
    images = tf.placeholder(tf.float32, [1, published.size, published.size, 3])
    models.build_logits(name, num_classes=published.num_classes)(images, False)
    weights = sum(variable.shape.num_elements() for variable in tf.trainable_variables())
    products = sum(map(count_products, graph.get_operations()))
    return dict(model=name, size=published.size, weights=weights, multiply_adds=products,
                num_ops=len(graph.get_operations()), published_millions=published.millions,
                published_billions=published.billions, source=published.source,
                tensorflow_version=tf.__version__)


def count_products(op: Any) -> int:
  """Returns how many numbers an op multiplies in pairs, of fully known shapes; 0 for most ops."""
  if op.type == 'MatMul':
    rows, depth = op.inputs[0].shape.as_list()
    return rows * depth * op.outputs[0].shape.as_list()[1]
  if op.type not in ('Conv2D', 'DepthwiseConv2dNative'):
    return 0
  height, width, channels, _ = op.inputs[1].shape.as_list()
  # A depthwise convolution adds up no channels.
  depth = height * width * (channels if op.type == 'Conv2D' else 1)
  return depth * op.outputs[0].shape.num_elements()


def format_line(line: Dict[str, Any]) -> str:
  """Returns a row of the table, in Markdown."""
  def shown(value, unit, published):
    beside = f' ({published:g})' if published else ''
    return f'{value / unit:.3g}{beside}'
  return (f"| `{line['model']}` | {line['size']} | "
          f"{shown(line['weights'], 1e6, line['published_millions'])} | "
          f"{shown(line['multiply_adds'], 1e9, line['published_billions'])} | "
          f"{line['num_ops']:,} | {line['source']} |")


def main() -> None:
  """Counts every model, and prints the table."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--models', type=several(one_of(MODELS)), default=','.join(MODELS))
  flags = parser.parse_args()
  print('| Model | Image | Weights, millions (published) | Multiply-adds, billions (published) | '
        'Ops | Published in |\n|---|---|---|---|---|---|')
  for name in flags.models:
    print(format_line(count(name)), flush=True)


if __name__ == '__main__':
  main()
