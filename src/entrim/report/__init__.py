"""The report of a run: one self-contained HTML file.

>>> from entrim.report import write
>>> write("no/such/folder")
Traceback (most recent call last):
...
entrim.errors.LoadError: no/such/folder does not exist (no entrim.json): pass a folder of save()
"""

from entrim.report.page import html, write
from entrim.report.report_data import ReportData, read

__all__ = ["ReportData", "html", "read", "write"]
