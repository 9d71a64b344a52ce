"""The parts of a step: the model is asked, its reply becomes events, calls are run."""
