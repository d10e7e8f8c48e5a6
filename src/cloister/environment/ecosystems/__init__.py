"""One module per ecosystem: what its manifests ask for."""
