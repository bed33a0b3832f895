"""Implementations of `kvmeta.index.MetadataIndex`."""
