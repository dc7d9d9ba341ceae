"""AlexNet: five convolutions, and three dense layers for ImageNet or one for CIFAR.

  conv 11x11x64 / 4 -> pool -> conv 5x5x192 -> pool -> conv 384 -> conv 256 -> conv 256 -> pool
    ImageNet: -> dropout -> dense 4096 -> dropout -> dense 4096 -> logits      pools 3x3 / 2
    CIFAR:    -> logits                                                        pools 2x2 / 2

The one-column form of Krizhevsky 2014 ("One weird trick for parallelizing convolutional neural
networks", arXiv:1404.5997), with the numbers of channels that torchvision trains: 61,100,840
weights with 1,000 classes. Its form for CIFAR without dense layers is that of
github.com/bearpaw/pytorch-classification, which reports 2.47 million weights and a 22.78 % error.

Initial values and hyper-parameters of Krizhevsky et al. 2012 ("ImageNet Classification with Deep
Convolutional Neural Networks"): weights normal with a deviation of 0.01, biases of the convolutions
2, 4 and 5 and of the dense layers 1; batches of 128, momentum 0.9, weight decay 0.0005, rate 0.01,
divided by 10 three times in 90 epochs. The form for CIFAR belongs to no paper, and starts from the
values of He et al. 2015.
"""

from towers.tensorflow_v1 import tf

from .layers import Layers, dense


def build_logits(images, is_training, num_classes, *, for_cifar=False, data_format='NHWC'):
  """Builds the logits, see `models`.

  Args:
    images: of 224x224 pixels, or 32x32 for CIFAR. Less than 63x63 leaves the dense layers nothing.
    for_cifar: the form without dense layers.
  """
  layers = Layers(is_training, data_format)
  initializer, bias = (None, 0.0) if for_cifar else (tf.random_normal_initializer(stddev=0.01), 1.0)

  def conv(x, filters, size, *, name, stride=1, bias=0.0):
    return layers.conv(x, filters, size, name=name, stride=stride, initializer=initializer,
                       bias=bias)

  def pool(x):
    return layers.max_pool(x, 2) if for_cifar else layers.max_pool(x, 3, 2, padding='VALID')

  x = pool(conv(layers.normalize(images), 64, 11, name='conv1', stride=4))
  x = pool(conv(x, 192, 5, name='conv2', bias=bias))
  x = conv(x, 384, 3, name='conv3')
  x = conv(x, 256, 3, name='conv4', bias=bias)
  x = layers.flatten(pool(conv(x, 256, 3, name='conv5', bias=bias)))
  if not for_cifar:
    for name in ('dense1', 'dense2'):
      x = dense(layers.dropout(x, 0.5), 4096, name=name, activation=tf.nn.relu,
                initializer=initializer, bias=bias)
  return dense(x, num_classes, name='logits', initializer=initializer)
