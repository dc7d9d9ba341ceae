"""A Keras model on one device.  python -m examples.migrating.keras_before"""
from towers import data
from towers.tensorflow_v1 import load_keras

keras = load_keras()
model = keras.Sequential([
    keras.layers.Conv2D(16, 5, strides=2, use_bias=False),
    keras.layers.BatchNormalization(),
    keras.layers.ReLU(),
    keras.layers.Flatten(),
    keras.layers.Dense(10, activation='softmax')
])
model.compile(optimizer=keras.optimizers.SGD(0.05), loss='sparse_categorical_crossentropy',
              metrics=['accuracy'])
images, labels = data.load('sample').train.arrays
history = model.fit(images / 255.0, labels, batch_size=64, epochs=2, verbose=0)
print(f"loss after 2 epochs: {history.history['loss'][-1]:.4f}")
