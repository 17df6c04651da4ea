"""Importing compiles nothing, and the package itself loads nothing heavy before a name is used."""


def timeraw_import():
    return "import dpmd_fast"


def timeraw_import_estimators():
    return "from dpmd_fast import DPManifoldDenoiser, ManifoldDenoiser"
