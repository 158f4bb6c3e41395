"""Manifests in; a stack file, findings and an adoption file out."""

from importer.manifests import Manifest, ManifestError, read_manifests
from importer.stack import Imported, import_manifests

__all__ = ["Imported", "Manifest", "ManifestError", "import_manifests", "read_manifests"]
