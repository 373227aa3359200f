"""Only what pyproject.toml cannot say: the folder `templates` is installed as kb/templates."""

from setuptools import find_namespace_packages, setup

setup(
    packages=[*find_namespace_packages(include=["config*", "kb*", "retrieval*"]), "kb.templates"],
    package_dir={"kb.templates": "templates"},
)
