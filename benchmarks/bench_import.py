"""Importing compiles nothing, and the package itself loads nothing heavy before a name is used."""

from .common import Suite, sized


class Import(Suite):
    repeat = sized(1, 3, 10)
    number = 1

    def timeraw_package(self):
        return "import dpmd_fast"

    def timeraw_estimators(self):
        return "from dpmd_fast import DPManifoldDenoiser, ManifoldDenoiser"

    def timeraw_command_line(self):
        return "import dpmd_fast.cli"
