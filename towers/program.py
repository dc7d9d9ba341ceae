"""Program: a model, its examples and N towers in one object."""

from typing import Any, Callable, Mapping, Optional, Sequence, Union

from towers.data.examples import Examples
from towers.input.epoch_order.rereading import check_rereading
from towers.input.plan import Plan
from towers.placement.workers import Workers
from towers.session.session import Session
from towers.settings.arguments import check_examples, check_model, check_optimizer, with_known_names
from towers.settings.program_settings import ProgramSettings
from towers.tower.model_call import Model
from towers.training_graph import TrainingGraph
from towers.update.groups import Optimizers, Rate
from towers.warm_start.matching import InitFrom


class Program(TrainingGraph):
  """A program that trains a model on N towers.

    program = towers.Program(model, train=towers.from_arrays(images, labels), batch_size=256,
                             optimizer=tf.train.AdamOptimizer(1e-3), num_towers=8)
    with program.session() as session:
      while session.step < 10_000:
        loss = session.train()

  It is built in the default graph, with every part of the straight line as an attribute, see
  `TrainingGraph`. `towers.train(program, …)` runs a whole training.

  Args:
    model: a function from a batch and `is_training` to the losses of the examples, shape
      `[batch]`, or to these and a dict of metrics, each of shape `[batch]`; for values that count
      by weights see `towers.Weighted`, for a metric of a whole split, such as AUC, `towers.Whole`.
    train: the examples to learn from.
    validation: the examples to measure on; None for a program that only trains.
    optimizer: a `tf.train.Optimizer`, or a function that makes one from the learning rate, or one
      of `(grads_and_vars, global_step)` that returns the op which updates the variables; or a dict
      of these by pattern of variables, as `{'generator/': adam, 'discriminator/': sgd}`, of which
      one matches each variable; `towers.Every(5, adam)` acts in every fifth step.
    learning_rate: for an optimizer that is a function: a float, or a function from the plan of the
      training split to a scalar tensor, which may read `get_examples_seen()` of
      `towers.placement.counters`.
    batch_size: the global batch, over all towers of all workers.
    accumulate: how many micro-batches a step is taken in. 'auto' begins with one, and doubles the
      number whenever a step runs out of memory: `towers.train` then goes on by itself, and a
      session raises `towers.OutOfMemory`, which holds the number to build with.
    last_batch: what becomes of an epoch's last batch if it is smaller: 'keep' takes it as it is;
      'pad' fills it up with rows that do not count, so that a tower's batches have one shape;
      'drop' leaves it out; 'carry' fills it up with the first examples of the next epoch, so that
      steps take other examples. 'auto' is 'keep', except in a new run of the command line that XLA
      compiles, where it is 'carry'.
    num_towers: None for as many as there are GPUs, or 2 on virtual CPU devices.
    device: 'gpu', 'cpu' for virtual CPU devices, or 'auto': GPUs when there is any.
    workers: the workers that train together, and which of them this process is; None to read
      TF_CONFIG.
    input_mode: 'split', one batch that is cut into shares; 'next', one batch per tower from one
      iterator; 'shard', an iterator per tower over its shard.
    input_threads: examples that are parsed at a time; None for one per core.
    staging_depth: batches that wait on each tower's device: 0, 1 or 2.
    shuffle: whether training examples are shuffled anew in every epoch.
    seed: of initial weights, shuffling and dropout.
    validation_tower: whether the last tower measures while the others train, instead of all towers
      in turn by the switch `is_validating`.
    variables: where they live: 'host', 'first', 'balanced', 'replicated', or 'auto': on the only
      GPU, replicated on several, and on the host for virtual CPU devices.
    tower_build: 'reuse' calls the model for each tower, 'clone' copies the ops of the first one,
      'auto' clones deep models.
    batch_norm: whose moments move the averages: those of the 'first' tower, the 'mean' over all, or
      with 'sync' those of the global batch, by which all towers then normalise.
    precision: 'float32', or 'mixed' for float16 with float32 variables.
    loss_scale: for 'mixed': a fixed scale, or None for one that adapts.
    recompute: the activations that the backward pass computes again to save memory: 'none',
      'auto', a number of segments, or the beginnings of names of ops, as 'block_1/,block_2/'.
    collective: 'ring', 'nccl' or 'auto', between replicas and workers.
    fusion_megabytes: how many megabytes of gradients one all-reduce sums together.
    wire: the dtype in which workers send gradients: 'float32', as they are; 'float16' or
      'bfloat16' take half the bytes, on TensorFlow 2.x.
    clip_norm: the largest global norm of the mean gradients; None for any.
    weight_decay: times each matrix or kernel is added to its clipped gradient.
    average_weights: the decay of moving averages of the weights, such as 0.9999, which validation
      and export use in place of the weights; None for no averages.
    frozen: patterns of variables that stay as they are, or one of them: no gradient, no slot, no
      update.
    rate_factors: by pattern, what multiplies the learning rate of some variables.
    init_from: the path of a checkpoint or .h5 file, or `towers.init_from(…)`, whose values the
      variables start from; or a function of the first batch, whose assignments they start from. It
      is read, or called, when a session starts, and never by one that restores.
    logical_gpus: how many parts one GPU is divided into, one for each tower; None to use whole
      GPUs.
    gpu_memory: how much of each GPU this process takes: 'growth' for as much as it needs, a
      fraction such as '0.4', or megabytes such as '9000'; logical GPUs need megabytes. None for
      all of it.

  Raises:
    UsageError: settings that do not go together, a second program in a graph, or a model that
      several towers would compute otherwise than one.
  """

  @with_known_names('program')
  def __init__(self, model: Model, *, train: Examples, validation: Optional[Examples] = None,
               optimizer: Optimizers,
               learning_rate: Union[float, Callable[[Plan], Rate], None] = None,
               batch_size: int, accumulate: Union[int, str] = 1, last_batch: str = 'auto',
               num_towers: Optional[int] = None, device: str = 'auto',
               workers: Optional[Workers] = None, input_mode: str = 'split',
               input_threads: Optional[int] = None, staging_depth: int = 1, shuffle: bool = True,
               seed: int = 0, validation_tower: bool = False, variables: str = 'auto',
               tower_build: str = 'auto', batch_norm: str = 'first', precision: str = 'float32',
               loss_scale: Optional[float] = None, recompute: Union[str, int] = 'none',
               collective: str = 'auto', fusion_megabytes: float = 4.0, wire: str = 'float32',
               clip_norm: Optional[float] = None, weight_decay: float = 0.0,
               average_weights: Optional[float] = None, frozen: Sequence[str] = (),
               rate_factors: Optional[Mapping[str, float]] = None,
               init_from: Union[str, InitFrom, Callable[[Any], Any], None] = None,
               logical_gpus: Optional[int] = None, gpu_memory: Optional[str] = None):
    settings = ProgramSettings.of(locals())
    check_model(model)
    check_examples('train', train)
    if validation is not None:
      check_examples('validation', validation)
    check_optimizer(optimizer)
    super().__init__(model, train, validation, settings, workers)
    inputs = self.feed.inputs
    first = check_rereading(train, inputs.num_iterators, is_trained=True)
    self.feed = self.feed._replace(inputs=inputs._replace(order=inputs.order._replace(first=first)))
    if validation is not None and self.validation is not None:
      check_rereading(validation, self.validation.feed.inputs.num_iterators, is_trained=False)

  def session(self, *, graph_rewriter: str = 'auto', inter_threads: Optional[int] = None,
              intra_threads: Optional[int] = None,
              stall_seconds: Optional[float] = None) -> Session:
    """Returns a session to train in step by step, to be entered by `with`.

    Args:
      graph_rewriter, inter_threads, intra_threads: see `build_session_config`.
      stall_seconds: how long a call may make no progress before the process ends and says why;
        None to wait without a limit.
    """
    return Session(self, graph_rewriter=graph_rewriter, inter_threads=inter_threads,
                   intra_threads=intra_threads, stall_seconds=stall_seconds)
