"""The microvm tier: a virtual machine per sandbox, woken from memory instead of booted."""
