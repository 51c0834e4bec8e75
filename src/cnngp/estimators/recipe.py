"""`Recipe`: the networks, preparations, symmetries, weights and noise of a fit, as one value that can be saved.

    K = Σ_t weight_t · K_t(prepared_t(X)),   each K_t with mean diagonal 1 on the training images

so that weights are comparable, and the noise means the same for every network.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cnngp.common.errors import is_number
from cnngp.datasets.preparation import NAMED, as_preparation, preparation_from_json, preparation_to_json
from cnngp.gp.checks import check_noise
from cnngp.gp.exact import Noise
from cnngp.kernel.symmetry import Symmetry, check_symmetry
from cnngp.network import serialize
from cnngp.network.layers import Network, as_layer
from cnngp.network.names import network_by_name, zoo_name

FORMAT = 1


class RecipeError(ValueError):
    """Error for an invalid recipe."""


@dataclass(frozen=True)
class Term:
    """One kernel of a recipe.

    network : the layers, or the name of a network such as "resnet32".
    preparation : preprocessing of the images: a name such as "contrast", one of the transformers in
        `cnngp.datasets.preparation`, or a tuple of these, applied in order.
    symmetry : None, "flip" or "d4"; see `Kernel`.
    weight : mean prior variance of this term in a sum of several.

    >>> from cnngp import Conv, Dense, ReLU, Sequential
    >>> from cnngp.estimators import Term
    >>> Term(Sequential(Conv(3), ReLU(), Dense()), preparation="contrast", symmetry="flip")
    Term(Sequential(Conv(3), ReLU(), Dense()), preparation='contrast', symmetry='flip')
    """

    network: Network
    preparation: Any = "plain"
    symmetry: Symmetry | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        network = network_by_name(self.network) if isinstance(self.network, str) else self.network
        if network is None:
            raise RecipeError("Term: network='auto' is no network; GPClassifier() chooses a recipe")
        object.__setattr__(self, "network", as_layer(network, "Term: network"))
        made = as_preparation(self.preparation)  # raises for anything else
        name = next((name for name in NAMED if NAMED[name]() == made), None)
        if name is not None:
            object.__setattr__(self, "preparation", name)
        elif isinstance(self.preparation, list):
            object.__setattr__(self, "preparation", tuple(self.preparation))
        check_symmetry(self.symmetry)
        if not is_number(self.weight, least=0.0) or self.weight == 0:
            raise RecipeError(f"Term: weight={self.weight!r}: expected a positive number")
        object.__setattr__(self, "weight", float(self.weight))  # NumPy numbers cannot be written as JSON

    def __repr__(self) -> str:
        usual: dict[str, Any] = {"preparation": "plain", "symmetry": None, "weight": 1.0}
        given = [f"{name}={getattr(self, name)!r}" for name, value in usual.items() if getattr(self, name) != value]
        return f"Term({', '.join([repr(self.network), *given])})"

    @property
    def name(self) -> str:
        """Short description of the term."""
        return self.called(zoo_name(self.network))

    def called(self, network: str) -> str:
        """Short description of the term, with this name for its network."""
        return ", ".join(filter(None, [network, self.said, self.symmetry]))

    @property
    def said(self) -> str:
        """Description of the preparation; empty for plain images."""
        steps = self.preparation if isinstance(self.preparation, tuple) else (self.preparation,)
        words = " then ".join(step if isinstance(step, str) else repr(step) for step in steps)
        return "" if words == "plain" else words

    @property
    def store_name(self) -> str:
        """Name of the part of a store with this term's matrix, independent of its weight."""
        said = f"{self.network.fingerprint} {self.preparation!r} {self.symmetry}"  # also for networks without JSON
        return f"term-{hashlib.sha256(said.encode()).hexdigest()[:16]}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "network": serialize.to_json(self.network),
            "preparation": preparation_to_json(self.preparation),
            "symmetry": self.symmetry,
            "weight": self.weight,
        }

    @classmethod
    def from_dict(cls, data: Any) -> Term:
        known = {"network", "preparation", "symmetry", "weight"}
        if not isinstance(data, dict) or set(data) != known:
            raise ValueError(f"a term has {', '.join(sorted(known))}")
        preparation = preparation_from_json(data["preparation"])
        return cls(serialize.from_json(data["network"]), preparation, data["symmetry"], data["weight"])


@dataclass(frozen=True)
class Recipe:
    """Terms of a kernel, and the noise: the input of `GPClassifier(recipe)`, and the result `clf.recipe_` of a fit.

    noise : noise variance in the units of the sum, in which each term's kernel has mean diagonal 1; "ml" or "loo" to
        choose it by likelihood or by leave-one-out; None for the default of `GPClassifier`.

    >>> from cnngp import GPClassifier, datasets
    >>> from cnngp.estimators import Recipe, Term
    >>> recipe = Recipe([Term("small_cnn"), Term("dense_nngp", preparation="contrast", weight=0.5)], noise=1e-3)
    >>> Recipe.from_json(recipe.to_json()) == recipe
    True
    >>> data = datasets.digits().take(200, 100)
    >>> clf = GPClassifier(recipe, device="cpu").fit(data.X, data.y)
    >>> clf.recipe_ == recipe
    True
    """

    terms: tuple[Term, ...]
    noise: Noise | None = None

    def __post_init__(self) -> None:
        terms = (self.terms,) if isinstance(self.terms, Term) else tuple(self.terms)
        if not terms or not all(isinstance(term, Term) for term in terms):
            raise RecipeError(f"Recipe: terms={self.terms!r}: expected one Term or several")
        object.__setattr__(self, "terms", terms)
        if self.noise is not None:
            check_noise(self.noise)
        if self.noise not in (None, "ml", "loo"):
            object.__setattr__(self, "noise", float(self.noise))

    def __repr__(self) -> str:
        noise = "" if self.noise is None else f", noise={self.noise!r}"
        return f"Recipe([{', '.join(map(repr, self.terms))}]{noise})"

    @property
    def name(self) -> str:
        """Short description of the terms."""
        if len(self.terms) == 1:
            return self.terms[0].name
        return " + ".join(f"{term.weight:g} × ({term.name})" for term in self.terms)

    @property
    def main(self) -> Term:
        """The term with the largest weight, the first of several."""
        return max(self.terms, key=lambda term: term.weight)

    def to_json(self) -> str:
        terms = [term.as_dict() for term in self.terms]
        return json.dumps({"cnngp_recipe": FORMAT, "terms": terms, "noise": self.noise})

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        """Read the recipe that `to_json` wrote; raise `RecipeError` for anything else."""
        try:
            data = json.loads(text)
            if not isinstance(data, dict) or data.get("cnngp_recipe") != FORMAT:
                raise ValueError('expected {"cnngp_recipe": 1, "terms": …} as to_json writes')
            return cls(tuple(Term.from_dict(term) for term in data["terms"]), data["noise"])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise RecipeError(f"not the JSON of a recipe: {error}") from None

    @classmethod
    def read(cls, path: str | Path) -> Recipe:
        """Read a recipe from a JSON file."""
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise RecipeError(f"{path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise RecipeError(f"{path} cannot be read: it is no text") from None
        except RecipeError as error:
            raise RecipeError(f"{path}: {error}") from None
