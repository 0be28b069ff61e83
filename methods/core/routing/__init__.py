"""What lets each token run or skip parts of the backbone."""
