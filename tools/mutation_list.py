"""Bugs that somebody might have written, and the tests that should notice each."""

# ruff: noqa: E501 (the text of another file, as it stands there)

from __future__ import annotations

from dataclasses import dataclass

SEALS = "tests/matrix/seals/test_seals.py tests/matrix/seals/test_earlier_stores.py"
FOREIGN = "tests/matrix/test_foreign.py"
FAULTS = "tests/matrix/test_gram_faults.py tests/matrix/test_gram_places.py"
GRAM = "tests/matrix/test_gram.py tests/matrix/test_tiles.py"
LANES = "tests/matrix/test_gram_lanes.py"
HANDS = "tests/matrix/test_hands.py"
FILES = "tests/common/test_files.py"
LOCKS = "tests/common/test_locks.py"
STUDY = "tests/search/test_study.py"
RESUME = "tests/gp/test_solve_resume.py"
SOLVE = "tests/gp/test_solve.py"
EXACT = "tests/gp/test_exact.py"
INDUCING = "tests/gp/test_inducing.py"
GROUPS = "tests/gp/test_groups.py"
REPEATS = "tests/estimators/test_repeats.py"
GEOMETRY = "tests/network/test_geometry.py tests/network/test_shapes.py"
PROGRAM = "tests/kernel/test_program.py tests/kernel/test_units.py"
RANGE = "tests/kernel/test_range.py"
TANGENT = "tests/estimators/test_tangent_estimators.py"
RECIPE = "tests/estimators/test_recipe.py"
FLIPS = "tests/kernel/test_symmetry.py"
POOLING = "tests/kernel/test_pooling.py"
GRADIENT_CHECK = "tests/kernel/test_gradient_check.py"
COMPILING = "tests/kernel/test_compiling.py"
CHECK = "tests/kernel/test_check.py"
VIEWER = "tests/report/test_viewer.py"
CIFAR = "tests/paper/test_cifar10.py"
PIECES = "tests/paper/test_pieces.py"


@dataclass(frozen=True)
class Bug:
    """`old` in `src/cnngp/file` becomes `new`; `tests`, those of them whose names hold `k`, should notice."""

    subject: str
    what: str
    file: str
    old: str
    new: str
    tests: str
    k: str = ""


# The tests of these files that should notice, by name: all of them would take minutes.
_WHERE = {
    "the sum in the seal is not compared": "wrong_place or whoever",
    "chunks are read without their seals": "wrong_place or whoever",
    "a missing chunk is NaN": "no_nan",
    "the array's own document is believed": "attributes_alone",
    "a checksum is not compared": "whoever or damaged_chunk or cannot_be_solved",
    "unknown keys in the array's document pass": "all_metadata or flip_of_a_bit",
    "codecs are not compared": "all_metadata",
    "the key encoding is not compared": "all_metadata",
    "the fill value is not compared": "all_metadata",
    "a shape from before growth is taken for a whole matrix": "all_metadata",
    "the attributes' checksum is not compared": "attributes_say",
    "the seal is written before the tile": "not_finished",
    "a tile without a seal counts": "damaged_seal",
    "seals of mirror images are not seen": "damaged_seal",
}


def _stores() -> list[Bug]:
    store, chunks, seals = "matrix/store/store.py", "matrix/store/chunks.py", "matrix/store/seals.py"
    verified, metadata, spec = "matrix/store/verified.py", "matrix/store/metadata.py", "matrix/store/spec.py"
    gram, grid, places = "matrix/gram.py", "common/tiles.py", "matrix/store/places.py"
    verifying = "matrix/verifying.py"

    def bug(what: str, file: str, old: str, new: str, tests: str = SEALS, k: str = "") -> Bug:
        return Bug("stores", what, file, old, new, tests, k or _WHERE.get(what, ""))

    return [
        bug("a seal does not hold the row", seals, "{matrix} {i} {j} {covers}", "{matrix} {j} {covers[2:]}"),
        bug("a seal does not hold the matrix", seals, "cnngp tile {matrix} {i}", "cnngp tile {i}"),
        bug("a seal does not hold what the tile covers", seals, "{i} {j} {covers} ", "{i} {j} ", SEALS, "alone or cut"),
        bug("a seal's own digest is not compared", seals, "or data[-_DIGEST:] != _digest", "or False and _digest"),
        bug("a mirror image takes the checksum of its tile", seals, "k = chunks.index((i, j))", "k = 0"),
        bug("the sum in the seal is not compared", verified, "i, j) != found:", "i, j) == b'':"),
        bug(
            "chunks are read without their seals",
            verified,
            "if self._spec.id is not None:\n                await",
            "if False:\n                await",
        ),
        bug(
            "a missing chunk is NaN",
            verified,
            'if whole is None:\n                raise ValueError("it is not there")',
            "if whole is None:\n                return None",
        ),
        bug("the array's own document is believed", verified, 'if key == f"{self._prefix}K/zarr.json":', "if False:"),
        bug(
            "a checksum is not compared",
            chunks,
            "if not np.array_equal(data[-CHECKSUM_BYTES:], _checksum(data)):",
            "if False:",
            FAULTS,
            "damaged_chunk",
        ),
        bug(
            "a size is not compared",
            chunks,
            "if len(data) != chunk_bytes(tile, dtype):",
            "if False:",
            f"{SEALS} {FAULTS}",
            "damaged_chunk or nothing",
        ),
        bug("unknown keys in the array's document pass", metadata, "sorted(strange | {", "sorted({"),
        bug("codecs are not compared", metadata, '- {"attributes"}', '- {"attributes", "codecs"}'),
        bug("the key encoding is not compared", metadata, '- {"attributes"}', '- {"attributes", "chunk_key_encoding"}'),
        bug("the fill value is not compared", metadata, '- {"attributes"}', '- {"attributes", "fill_value"}'),
        bug(
            "a shape from before growth is taken for a whole matrix",
            store,
            "and not (growing and differs",
            "and not (differs",
        ),
        bug("the attributes' checksum is not compared", spec, "if not sound or spec.dtype", "if spec.dtype"),
        bug(
            "the identity changes when images are added",
            gram,
            "id=None if found is None else found.id,\n        kind=kernel.kind,\n    )\n    return spec.identified() if found is None else spec",
            "id=None,\n        kind=kernel.kind,\n    )\n    return spec.identified()",
            f"{SEALS} {GRAM}",
            "grow or cut or attributes",
        ),
        bug(
            "the identity does not depend on the images",
            spec,
            'replace(self, id="").attributes()',
            'replace(self, id="", X=replace(self.X, sha256="")).attributes()',
            SEALS,
            "another_matrix",
        ),
        bug(
            "the seal is written before the tile",
            store,
            '        wait(set_all(self.zarr_store, chunks))\n        if self.spec.id is not None:  # last: a tile with a seal is whole\n            self.set_bytes(f"K/seals/{tile.i}/{tile.j}", seal(self.spec.id, self.grid, tile.i, tile.j, sums))',
            '        if self.spec.id is not None:\n            self.set_bytes(f"K/seals/{tile.i}/{tile.j}", seal(self.spec.id, self.grid, tile.i, tile.j, sums))\n        wait(set_all(self.zarr_store, chunks))',
        ),
        bug(
            "a tile without a seal counts",
            store,
            "        if self.sealed:\n            sealed = self._listed",
            "        if False:\n            sealed = self._listed",
        ),
        bug(
            "seals of mirror images are not seen",
            store,
            "(sealed | sealed.T) if self.grid.symmetric else sealed",
            "sealed",
        ),
        bug(
            "growth of Z keeps cut columns",
            grid,
            "if shape[1] > self.shape[1] and self.shape[1] % self.tile[1]:",
            "if False:",
            SEALS,
            "cut",
        ),
        bug(
            "growth of X keeps cut rows",
            grid,
            "if shape[0] > self.shape[0] and self.shape[0] % self.tile[0]:",
            "if False:",
            SEALS,
            "cut",
        ),
        bug(
            "edge chunks go after the metadata",
            store,
            "                for i, j in self.grid.cut_by_growth(spec.shape):\n                    self.forget(*tile_of(self.grid, i, j))\n                self._update(spec.attributes())",
            "                self._update(spec.attributes())\n                for i, j in self.grid.cut_by_growth(spec.shape):\n                    self.forget(*tile_of(self.grid, i, j))",
            SEALS,
            "cut",
        ),
        bug(
            "damaged tiles stay until they are computed",
            gram,
            "                store.forget(*at)",
            "                pass",
            FAULTS,
            "gone_before",
        ),
        bug(
            "NaN in K(X, Z) passes",
            store,
            "good = not bool(np.isnan(block).any())",
            "good = True",
            SEALS,
            "nan",
        ),
        bug(
            "tiles that are not finite are written",
            store,
            "if not (math.isfinite(float(block.max())) and math.isfinite(float(block.min()))):",
            "if False:",
            FAULTS,
            "not_finite",
        ),
        bug(
            "a tile in a wrong place passes the upgrade",
            verifying,
            "if _belongs(store, kernel, x, z, t):",
            "if True:",
            SEALS,
            "earlier",
        ),
        bug(
            "the upgrade is declared before it is done",
            verifying,
            "    store.adopt_seals()\n    return misplaced",
            "    return misplaced",
            SEALS,
            "earlier or upgrade",
        ),
        bug(
            "links are followed",
            places,
            "if path.is_symlink():\n            raise _is_link(path)",
            "if False:\n            raise _is_link(path)",
            FOREIGN,
            "link",
        ),
        bug("links to rows of chunks are followed", places, "if entry.is_symlink():", "if False:", FOREIGN, "link"),
        bug(
            "leftovers of living processes are removed",
            places,
            'newest = float("inf") if locked else',
            'newest = float("inf") if True else',
            FAULTS,
            "left_alone",
        ),
        bug(
            "a lock is made in the store of somebody else",
            store,
            'if (local / "zarr.json").exists():\n                GramStore(where, read_only=True)',
            "if False:\n                GramStore(where, read_only=True)",
            FOREIGN,
            "somebody",
        ),
        bug(
            "a read-only store promises to compute",
            gram,
            "missing, damaged = missing_and_damaged(store, verify, progress)",
            "missing, damaged = missing_and_damaged(store, verify, progress)\n    report(store, damaged)",
            FOREIGN,
            "promise",
        ),
        bug("another engine adds tiles", gram, "    if made_by != engine:\n", "    if False:\n", GRAM, "engine"),
        bug(
            "processes without locks do not look",
            gram,
            "if store.has(tile):\n            done(tile)",
            "if False:\n            done(tile)",
            FAULTS,
            "share",
        ),
        bug(
            "errors of the last write are swallowed",
            "matrix/fill.py",
            "            if writing is not None:\n                writing.result()\n\n",
            "\n",
            LANES,
            "swallowed",
        ),
        bug(
            "errors of a write are swallowed",
            "matrix/fill.py",
            "                if writing is not None:\n                    writing.result()\n                writing = writer",
            "                writing = writer",
            LANES,
            "swallowed",
        ),
        bug(
            "both triangles are not compared",
            store,
            "good = is_mirror(block, block if i == j else self.read(j, i))",
            "good = is_mirror(block, block) if i == j else True",
            FAULTS + " " + SEALS,
            "damaged or wrong_place",
        ),
    ]


def _locks_and_files() -> list[Bug]:
    locks, files, claims = "common/locks.py", "common/files.py", "search/claims.py"

    def bug(what: str, file: str, old: str, new: str, tests: str = FILES, k: str = "") -> Bug:
        return Bug("locks and files", what, file, old, new, tests, k)

    return [
        bug(
            "a child keeps the lock of its parent",
            locks,
            "os.register_at_fork(after_in_child=_close_all)",
            "pass",
            LOCKS,
        ),
        bug(
            "a child closes a number that is another's",
            locks,
            "    if descriptor in _open:\n        _open.remove(descriptor)\n        os.close(descriptor)",
            "    _open.discard(descriptor)\n    os.close(descriptor)",
            LOCKS,
        ),
        bug("a lock that is a link is followed", locks, 'getattr(os, "O_NOFOLLOW", 0)', "0", LOCKS),
        bug("a lock that is a hard link is written", locks, "or found.st_nlink > 1", "", LOCKS),
        bug(
            "other content of a lock file is lost",
            locks,
            'if os.read(descriptor, 1) not in (b"", b"{"):',
            "if False:",
            LOCKS,
        ),
        bug(
            "a taken lock is taken",
            locks,
            'return "taken"',
            'return "locked"',
            LOCKS + " " + FAULTS,
            "lock or waits or claim",
        ),
        bug("a claim on a file that is gone holds", claims, "if _is_file(descriptor, path):", "if True:", LOCKS),
        bug(
            "a claim's file goes after its lock",
            claims,
            "        with suppress(OSError):  # systems that keep files that are open\n            (self._folder / name).unlink()\n        close_file(descriptor)",
            "        close_file(descriptor)\n        with suppress(OSError):\n            (self._folder / name).unlink()",
            LOCKS,
        ),
        bug("compressed members pass", files, "info.compress_type == zipfile.ZIP_STORED and", "", FILES),
        bug("overlapping members pass", files, "or info.header_offset < end", "", FILES),
        bug("names that come twice pass", files, "or info.filename in names", "", FILES),
        bug(
            "memory for what an array says it has",
            files,
            "if len(rest) != entries * dtype.itemsize or any(n < 0 for n in shape):",
            "if False:",
            FILES,
        ),
        bug(
            "the checksum of a model is not compared",
            files,
            'if checksum.decode(errors="replace") != _digest(members):',
            "if False:",
            FILES,
        ),
        bug("the mode of a file is lost", files, "temporary.chmod(stat.S_IMODE(path.stat().st_mode))", "pass", FILES),
        bug("temporary names can be known", files, "{secrets.token_hex(_TOKEN_BYTES)}", "{os.getpid()}", FILES),
        bug("what killed processes left stays", files, "    _sweep(path)\n", "", FILES),
        bug("what others are writing is swept", files, 'if state == "locked" or (', "if True or (", FILES),
        bug("arrays by columns come back by rows", files, 'copy(order="K")', "copy()", FILES),
        bug(
            "a model names its store",
            "estimators/files.py",
            "if k not in not_saved}\n        if parameters",
            "}\n        if parameters",
            FOREIGN,
            "store",
        ),
        bug(
            "a model of other points is read",
            "estimators/files.py",
            "if model.gp_.points != len(model.X_):",
            "if False:",
            FOREIGN,
            "says_what",
        ),
    ]


def _studies_and_clusters() -> list[Bug]:
    study, hands, roster = "search/study.py", "matrix/cluster/hands.py", "matrix/cluster/roster.py"

    def bug(what: str, file: str, old: str, new: str, tests: str = HANDS, k: str = "") -> Bug:
        return Bug("studies and clusters", what, file, old, new, tests, k)

    return [
        bug(
            "records without a checksum pass",
            study,
            "if kept is None and not self._checked:",
            "if kept is None:",
            STUDY,
            "altered",
        ),
        bug(
            "a record's value is not in its checksum",
            study,
            "if kept == digest([record.value, record.params, attributes]):",
            "if kept == digest([attributes['error'], record.params, attributes]):",
            STUDY,
            "altered or flip",
        ),
        bug("notes are not compared", study, "if kept != digest([name, value]):", "if False:", STUDY, "note"),
        bug("deaths are not counted", hands, "task.deaths += 1", "task.deaths += 0", HANDS),
        bug("a paused worker counts as dead", hands, "if states[task.worker] is not None or", "if", HANDS),
        bug("a task given again is not marked", hands, "task.again = True", "pass", HANDS),
        bug("what a frozen worker has is waited for", roster, "if silent > SILENT_SECONDS:", "if False:", HANDS),
        bug(
            "data that are gone are not sent again",
            hands,
            "self._sent = None  # the data may be gone, and the client may not have heard of it",
            "pass",
            HANDS,
        ),
        bug(
            "sending is waited for when a worker is lost",
            hands,
            "lambda: set(workers) <= set(self.roster.there())",
            "lambda: True",
            HANDS,
        ),
        bug(
            "a lost answer is an error of the work",
            hands,
            "except (TimeoutError, CancelledError):",
            "except CancelledError:",
            HANDS,
        ),
        bug(
            "results come in another order",
            hands,
            "return [results[k] for k in range(len(items))]",
            "return list(results.values())",
            HANDS,
        ),
    ]


def _checkpoints() -> list[Bug]:
    checkpoint, solving = "gp/solving/checkpoint.py", "gp/solving/__init__.py"

    def bug(what: str, file: str, old: str, new: str, tests: str = RESUME, k: str = "") -> Bug:
        return Bug("checkpoints", what, file, old, new, tests, k)

    return [
        bug(
            "start is lost",
            checkpoint,
            "numbers = {name: header[name] for name in _NUMBERS}",
            "numbers = {name: header[name] for name in _NUMBERS} | {'start': 1.0}",
        ),
        bug(
            "the iteration is lost",
            checkpoint,
            "numbers = {name: header[name] for name in _NUMBERS}",
            "numbers = {name: header[name] for name in _NUMBERS} | {'iteration': 0}",
        ),
        bug(
            "best is lost",
            checkpoint,
            "xp.asarray(arrays[name]) for name in _ARRAYS",
            "xp.asarray(arrays['X' if name == 'best' else name]) for name in _ARRAYS",
        ),
        bug(
            "checkpoints of other problems are taken",
            checkpoint,
            'if header.get("problem") != self.problem:',
            "if False:",
        ),
        bug(
            "the noise is not part of the problem",
            solving,
            "{matrix.fingerprint()} {noise!r} {rank}",
            "{matrix.fingerprint()} {rank}",
        ),
        bug(
            "the targets are not part of the problem",
            solving,
            "    digest.update(np.ascontiguousarray(to_numpy(B)).data)\n",
            "",
        ),
        bug(
            "a finished solve leaves its checkpoint",
            solving,
            "        else:\n            keep.remove()",
            "        else:\n            pass",
        ),
        bug("files that are no checkpoint are moved", checkpoint, "if not _is_checkpoint(path):", "if False:"),
        bug(
            "Ctrl-C loses what was done since the last note",
            solving,
            "        keep.save(E, latest, every=0.0)\n        told",
            "        keep.save(E, latest)\n        told",
        ),
        bug(
            "the diagonal is not part of the fingerprint, nor rows",
            "gp/solving/matrices.py",
            "for i in (0, self.n // 2, self.n - 1):",
            "for i in ():",
        ),
        bug(
            "mirror images are multiplied twice",
            "gp/solving/matrices.py",
            "if t.mirrored:",
            "if self.mirrored:",
            SOLVE,
        ),
        bug(
            "mirror images are left out",
            "gp/solving/matrices.py",
            "if t.mirrored:",
            "if False:",
            SOLVE,
        ),
    ]


def _leave_one_out() -> list[Bug]:
    exact, left, repeats = "gp/exact.py", "gp/inducing_left_out.py", "estimators/repeats.py"

    def bug(what: str, file: str, old: str, new: str, tests: str = EXACT, k: str = "") -> Bug:
        return Bug("leave-one-out", what, file, old, new, tests, k)

    return [
        bug(
            "the residual is added",
            exact,
            "self.Y - self.alpha / self.inverse_diagonal[:, None]",
            "self.Y + self.alpha / self.inverse_diagonal[:, None]",
        ),
        bug(
            "the variance lacks the amplitude",
            exact,
            "self.amplitude / self.inverse_diagonal\n",
            "1.0 / self.inverse_diagonal\n",
        ),
        bug(
            "the amplitude divides by the points alone",
            exact,
            "float((self.Y * self.alpha).sum()) / (n * outputs)\n            case",
            "float((self.Y * self.alpha).sum()) / n\n            case",
        ),
        bug(
            "the amplitude of leave-one-out lacks the variance",
            exact,
            "squares = self.alpha**2 / self.inverse_diagonal[:, None]",
            "squares = self.alpha**2",
        ),
        bug(
            "an inducing point predicts itself",
            left,
            "H - _turned(C) @ _solved(S, C)",
            "H - 0 * _turned(C) @ _solved(S, C)",
            INDUCING,
        ),
        bug(
            "its own weight stays",
            left,
            "f - _turned(C) @ _solved(S, G @ w)",
            "f - 0 * _turned(C) @ _solved(S, G @ w)",
            INDUCING,
        ),
        bug(
            "what it knows of itself stays",
            left,
            "known - (p * _solved(G @ _turned(G), p)).sum(1)",
            "known - 0 * p.sum(1)",
            INDUCING,
        ),
        bug(
            "the weights of the points are left out",
            left,
            "xp.sqrt(weights[at])",
            "xp.ones_like(weights[at])",
            INDUCING,
        ),
        bug(
            "the noise is counted once too often",
            left,
            "factor.shift * (1.0 + spread)",
            "factor.shift * (2.0 + spread)",
            INDUCING,
        ),
        bug(
            "groups of inducing images fall apart",
            left,
            "np.arange(len(self.own)) if self.groups is None else self.groups",
            "np.arange(len(self.own))",
            INDUCING,
        ),
        bug(
            "points of a group keep their own variance",
            "gp/groups.py",
            "        if size == 1:\n",
            "        if True:\n",
            GROUPS,
        ),
        bug("noise is chosen as if there were no groups", "gp/noise.py", "if at.shape[1] > 1]", "if False]", GROUPS),
        bug(
            "repeated images are not kept together",
            repeats,
            "        together = codes\n",
            "        together = groups\n",
            REPEATS,
        ),
        bug(
            "a group and its repeats are not joined",
            repeats,
            "connected_components(edges, directed=False)[1][groups]",
            "groups",
            REPEATS,
        ),
        bug(
            "half a group is in the sample",
            "gp/groups.py",
            "return np.flatnonzero(taken[groups])",
            "return np.flatnonzero(taken[groups])[:most]",
            GROUPS,
        ),
    ]


def _padding() -> list[Bug]:
    file = "network/geometry.py"

    def bug(what: str, old: str, new: str, tests: str = GEOMETRY, k: str = "") -> Bug:
        return Bug("padding", what, file, old, new, tests, k)

    return [
        bug(
            "reflection repeats the border",
            "return nu if nu < size else 2 * (size - 1) - nu",
            "return nu if nu < size else 2 * size - 1 - nu",
            f"{GEOMETRY} {PROGRAM}",
        ),
        bug(
            "replication stops one early",
            "return min(max(nu, 0), size - 1)",
            "return min(max(nu, 0), size - 2) if size > 1 else 0",
            f"{GEOMETRY} {PROGRAM}",
        ),
        bug(
            "zeros have the border too",
            "return nu if 0 <= nu < size else None",
            "return nu if 0 <= nu <= size - 1 and nu != size else (size - 1 if nu == size else None)",
            GEOMETRY,
        ),
        bug(
            "the last output is lost",
            "return (padded - self.reach) // self.stride + 1",
            "return (padded - self.reach - 1) // self.stride + 1",
            GEOMETRY,
        ),
        bug(
            "the reach forgets the dilation",
            "return self.dilation * (self.kernel - 1) + 1",
            "return self.kernel",
            GEOMETRY,
        ),
        bug(
            "circular padding may be too long",
            'if (self.mode == "circular" and longest > size) or',
            'if (self.mode == "circular" and longest > 2 * size) or',
            GEOMETRY,
        ),
        bug(
            "reflection may be too long",
            'self.mode == "reflect" and longest >= size',
            'self.mode == "reflect" and longest > size',
            GEOMETRY,
        ),
    ]


def _units() -> list[Bug]:
    units, formulas = "kernel/program/units.py", "kernel/program/formulas.py"

    def bug(what: str, file: str, old: str, new: str, tests: str = PROGRAM, k: str = "") -> Bug:
        return Bug("units", what, file, old, new, tests, k)

    return [
        bug("the gain is not squared", formulas, "square = layer.gain * layer.gain", "square = layer.gain"),
        bug("the half of ReLU is lost", formulas, "unit: square * unit / 2.0", "unit: square * unit"),
        bug("Erf loses its factor", formulas, "factor=lambda unit: 2.0 / math.pi", "factor=lambda unit: 1.0"),
        bug("Step loses its half", formulas, "unit: 1.0 / (2.0 * math.pi)", "unit: 1.0 / math.pi"),
        bug("Abs has the wrong sign", formulas, "beta=-1.0,", "beta=1.0,"),
        bug(
            "a slope's own unit is lost",
            formulas,
            "factor=lambda unit: unit * own",
            "factor=lambda unit: unit",
            RANGE,
            "slope",
        ),
        bug("no power of two is taken out", units, "return math.ldexp(unit, round(drift))", "return unit"),
        bug("the shift goes the other way", units, "drift = level - log2(unit)", "drift = log2(unit) - level"),
        bug(
            "the unit of T holds a far larger K",
            "kernel/program/tangents.py",
            "_MOST_OWN = 2.0**20",
            "_MOST_OWN = 2.0**200",
            RANGE,
        ),
        bug("units beyond float64 pass", units, "if not sys.float_info.min <= unit < math.inf:", "if False:"),
        bug(
            "units that are no powers of two",
            units,
            "return math.ldexp(unit, round(drift))",
            "return unit * 3.0 ** round(drift / 1.585)",
        ),
    ]


def _models_and_kinds() -> list[Bug]:
    files, flips, spec = "estimators/files.py", "kernel/symmetry.py", "matrix/store/spec.py"
    recipe, gradient, engine = "estimators/recipe.py", "kernel/gradient_check.py", "kernel/engines/cpu/engine.py"

    def bug(what: str, file: str, old: str, new: str, tests: str, k: str = "") -> Bug:
        return Bug("models, preparations, kinds", what, file, old, new, tests, k)

    return [
        bug(
            "a store of the other kind passes", spec, "if self.kind != wanted.kind:", "if False:", TANGENT, "one_kernel"
        ),
        bug("a store does not say its kind", spec, 'if self.kind != "nngp":', "if False:", TANGENT, "one_kernel"),
        bug("a model loses its preparation", files, 'if model.preparation_ != "plain":', "if False:", RECIPE, "a_file"),
        bug(
            "a model keeps prepared images, and prepares them again",
            files,
            '{"X": model.originals_}',
            '{"X": model.X_}',
            RECIPE,
            "a_file",
        ),
        bug(
            "images of a loaded model are not prepared",
            files,
            "model.X_ = model._prepared(model.originals_)",
            "model.X_ = model.originals_",
            RECIPE,
            "a_file",
        ),
        bug(
            "NaN in a model passes",
            files,
            'if array.dtype.kind in "fc" and not',
            "if False and not",
            FOREIGN,
            "regressor",
        ),
        bug(
            "a report of nonsense passes",
            files,
            "model.fit_report_.verdict, model.fit_report_.rows()",
            "None",
            FOREIGN,
            "crafted and inducing",
        ),
        bug("a symmetric matrix is not mirrored", flips, "upper + upper.T", "upper", FLIPS, "average_over"),
        bug("networks that reach to one side pass", flips, "off <= _SAME", "off >= 0", FLIPS, "average_over"),
        bug(
            "pooled networks have the old identity",
            engine,
            "VERSION if program.input is not None else POOLED_VERSION",
            "VERSION",
            POOLING,
            "version_of_their_own",
        ),
        bug(
            "the kind is not in the engine's identity",
            engine,
            'f"cpu-{version}-{self.dtype.name}" + ("" if program.kind == "nngp" else f"-{program.kind}")',
            'f"cpu-{version}-{self.dtype.name}"',
            TANGENT,
            "classifier_is",
        ),
        bug(
            "a gradient of NaN passes",
            gradient,
            "if not apart[worst] <= FAR * bound:",
            "if apart[worst] > FAR * bound:",
            GRADIENT_CHECK,
        ),
        bug("small derivatives are not judged", gradient, "_SMALL * sizes.max()", "sizes.max()", GRADIENT_CHECK),
        bug("the worse way is taken", recipe, "best = min(tried", "best = max(tried", RECIPE, "light or chance"),
        bug(
            "chance decides",
            recipe,
            "max(_WORTH, 2.0 * gain.std() / math.sqrt(len(gain)))",
            "0.0",
            RECIPE,
            "chance or few",
        ),
    ]


def _caches_and_pages() -> list[Bug]:
    compiling, verdicts = "kernel/engines/cpu/compiling.py", "kernel/verdicts.py"

    def bug(what: str, file: str, old: str, new: str, tests: str, k: str = "") -> Bug:
        return Bug("caches, pages, pickles", what, file, old, new, tests, k)

    return [
        bug(
            "compiled code is not compared",
            compiling,
            "if content[:_DIGEST] != self._checksum",
            "if False and content != self._checksum",
            COMPILING,
            "damaged or another",
        ),
        bug(
            "code of other types is run",
            compiling,
            "return code if found == key else None",
            "return code",
            COMPILING,
            "other_types",
        ),
        bug(
            "code is not bound to its name",
            compiling,
            'f"{self._version} {name} "',
            'f"{self._version} "',
            COMPILING,
            "another",
        ),
        bug(
            "a verdict is not compared",
            verdicts,
            'if data["sha256"] == _checksum(key, verdict):',
            "if True:",
            CHECK,
            "verdict",
        ),
        bug(
            "a verdict is not bound to its name",
            verdicts,
            "json.dumps([key, verdict.as_dict()])",
            "json.dumps([verdict.as_dict()])",
            CHECK,
            "verdict",
        ),
        bug(
            "the viewer keeps connections",
            "report/viewer/server.py",
            '"HTTP/1.0"',
            '"HTTP/1.1"',
            VIEWER,
            "refused_request",
        ),
        bug(
            "the viewer reads under its lock",
            "report/viewer/server.py",
            "            body = read()  # before the lock: one who sends nothing more keeps nobody else waiting\n            with self.server.lock:\n",
            "            with self.server.lock:\n                body = read()\n",
            VIEWER,
            "keeps_nobody",
        ),
        bug(
            "any origin may send data",
            "report/viewer/server.py",
            "if origin is not None and f",
            "if False and f",
            VIEWER,
            "own_page",
        ),
        bug(
            "pickles may name anything",
            "datasets/cifar.py",
            "if (module, name) not in _STANDS_FOR:",
            "if False:",
            CIFAR,
            "would_run",
        ),
        bug(
            "parts of a flip average may be links",
            "matrix/store/places.py",
            "if local is not None and (local / name).is_symlink():",
            "if False:",
            FOREIGN,
            "flip or prediction",
        ),
        bug("claims may be links", "search/claims.py", "if self._folder.is_symlink():", "if False:", STUDY, "claims"),
        bug(
            "a study behind a link has claims of its own",
            "search/study.py",
            "path = _followed(path)",
            "path = path.absolute()",
            STUDY,
            "behind_a_link",
        ),
        bug(
            "a piece is taken under any name",
            "paper/setting.py",
            '(document["piece"], document["fingerprint"]) != (path.stem, fingerprint)',
            'document["fingerprint"] != fingerprint',
            PIECES,
            "name_of_another",
        ),
    ]


BUGS = [
    *_stores(),
    *_locks_and_files(),
    *_studies_and_clusters(),
    *_checkpoints(),
    *_leave_one_out(),
    *_padding(),
    *_units(),
    *_models_and_kinds(),
    *_caches_and_pages(),
]
