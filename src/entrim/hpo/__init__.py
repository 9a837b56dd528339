"""Search for hyper-parameters with Optuna."""
