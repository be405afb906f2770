#!/usr/bin/env python3
"""Linear regression by several workers: each has its own part of the data, the server has the parameters.

    longhaul-server --listen 127.0.0.1:7700 --workers 4 --insecure &
    longhaul-worker --join 127.0.0.1:7700 --insecure --world-size 4 --ranks 4 -- python3 examples/numpy_linear.py

longhaul-worker starts the four and tells each in its environment where the job is and which rank it is.
"""
import longhaul
import numpy as np

FEATURES, SAMPLES, ROUNDS = 100, 1000, 60
truth = np.random.default_rng(7).standard_normal(FEATURES).astype(np.float32)

with longhaul.connect() as client:
    random = np.random.default_rng(client.rank)
    x = random.standard_normal((SAMPLES, FEATURES)).astype(np.float32)
    y = x @ truth + 0.1 * random.standard_normal(SAMPLES).astype(np.float32)

    weights = np.zeros(FEATURES, np.float32)
    tensor = client.declare("weights", initial=weights, optimizer="sgd:lr=0.3")
    for _ in range(ROUNDS):
        gradient = x.T @ (x @ weights - y) / SAMPLES
        # The gradient out, the updated parameters in: all workers have the same ones after it.
        client.push_pull(tensor, gradient, weights, weight=SAMPLES).wait()
    if client.rank == 0:
        print("distance to the truth: %.4f" % np.linalg.norm(weights - truth))
