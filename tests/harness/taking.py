"""What an input pipeline gives to towers, without a model."""

import towers
from tensorflow_v1 import tf


def take(examples, *, num_steps=1, first_step=0, batch_size=8, num_towers=1, mode='split',
         read=lambda tensors: tensors, shuffle=False, seed=0, parallel_calls=None, **plan):
  """Returns for each step each tower's (tensors, number of examples).

  Args:
    read: of a batch's tensors, what is to be fetched.
    **plan: of `towers.build_plan`.
  """
  with tf.Graph().as_default():
    plan = towers.build_plan(num_examples=examples.num_examples, batch_size=batch_size,
                             num_towers=num_towers, **plan)
    inputs = towers.build_inputs(examples, mode=mode, plan=plan, shuffle=shuffle, seed=seed,
                                 parallel_calls=parallel_calls)
    fetches = [(read(batch.tensors), tf.convert_to_tensor(batch.num_examples))
               for batch in inputs.next_batches()]
    with tf.Session() as session:
      session.run(inputs.initializer, inputs.feed_dict(first_step))
      return [session.run(fetches) for _ in range(num_steps)]
