"""Images: Dockerfiles and registries, built and unpacked inside sandboxes."""
