from __future__ import annotations

import pytest
import torch

from ragray.config import GeneratorConfig
from ragray.generators.loading import load_generator
from ragray.priors import DensePrior
from ragray.rag import Rag


@pytest.fixture
def make_rag(encoder, shard, generator):
    def make(variant, k=3, retriever=shard, generator=generator, **options):
        return Rag(DensePrior(encoder, retriever), generator, variant, k, **options)

    return make


@pytest.fixture
def load(request):
    """load("bart", ...) gives a generator of the tiny model of that name, in float32 unless told."""

    def load(name, dtype=torch.float32, **options):
        folder = request.getfixturevalue(f"{name}_folder")
        return load_generator(folder, GeneratorConfig(model="tiny", **options), dtype)

    return load
