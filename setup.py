"""What pyproject.toml cannot say: `conf/` travels in the package as `mempo/conf/`."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["mempo*", "callbacks*"]), "mempo.conf"],
    package_dir={"mempo.conf": "conf"},
    package_data={
        "mempo": ["py.typed"],
        "mempo.agent.prompts": ["*.txt"],
        "mempo.command": ["scaffolds/**/*"],
        "mempo.demonstrations": ["shipped/*"],
        "mempo.ask.served": ["page/*"],
        "mempo.inspect": ["page/*"],
        "mempo.judging": ["*.txt"],
        "mempo.conf": ["**/*.yaml"],
    },
    include_package_data=False,
)
