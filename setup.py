"""The packages of the wheel: `towers`, and in it `staging` and `models` of the top of a checkout,
so that these two names stay the user's."""

import setuptools

setuptools.setup(
    packages=[*setuptools.find_packages(include=['towers*']), 'towers.staging', 'towers.models'],
    package_dir={'towers.staging': 'staging', 'towers.models': 'models'})
