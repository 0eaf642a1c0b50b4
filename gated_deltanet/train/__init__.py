"""Training: recipe → run → loop, from a laptop to a cluster.

    from gated_deltanet.train.loop import train
    from gated_deltanet.train.parallel import processes
    from gated_deltanet.train.recipes import resolve
    from gated_deltanet.train.run import start

    with processes() as place:
        train(start(resolve("gdn-tiny", None, {"tokens": "20M"}), "runs/tiny", place))

The files in the order to read them: recipe, recipes, loop, step, optimizer, validation, run, checkpoint, parallel.
"""
