"""What methods share: models, surgery, routing, training, data, counting, files."""
