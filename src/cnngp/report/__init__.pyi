from .suspects import apply_decisions as apply_decisions

__all__: list[str]
