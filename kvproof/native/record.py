"""Records: named integer fields over one flat row, for Python and for compiled kernels alike.

A `Schema` names the fields and their dimensions; a `Record` is one row of cells read as
`s.num_running`, `s.ref_cnt[b]`, `s.block_table[r, i]`. The sizes of the dimensions are run-time
values, so that a row is as tight as the scope allows while the kernels are compiled only once.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.extending import (
    intrinsic,
    lower_builtin,
    models,
    overload,
    register_model,
    typeof_impl,
    unbox,
)
from numba.core.imputils import lower_getattr_generic, lower_setattr_generic
from numba.core.typing.templates import (
    AbstractTemplate,
    AttributeTemplate,
    infer_getattr,
    infer_global,
    signature,
)
from numba.extending import NativeValue
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_SCHEMAS: dict[str, Schema] = {}
_MAX_DIMS = 3


@dataclass(frozen=True)
class Field:
    """One named field: `dims` are names of dimensions, none for a single number.

    `among` is the range of its cells, ends included: "0..B-1", or "0.." where nothing bounds it.
    A field that `lasts` is left alone when the record is cleared.
    """

    name: str
    dims: tuple[str, ...]
    among: str
    about: str
    lasts: bool = False


class Schema:
    """The fields of one kind of record, in order, with their cell type (a signed integer).

    Fields that last come behind all others.
    """

    def __init__(self, name: str, cell: Any, fields: tuple[Field, ...]) -> None:
        if name in _SCHEMAS:
            raise ValueError(f"schema {name!r} is defined twice")
        self.name = name
        self.cell = np.dtype(cell)
        self.fields = tuple(sorted(fields, key=lambda field: field.lasts))
        self.index = {field.name: i for i, field in enumerate(self.fields)}
        if len(self.index) != len(fields):
            raise ValueError(f"schema {name!r} names a field twice")
        self.first_lasting = sum(not field.lasts for field in fields)
        _SCHEMAS[name] = self

    def layout(self, sizes: Mapping[str, int]) -> Layout:
        """The layout of a row whose dimensions have these sizes."""
        return Layout(self, sizes)


class Layout:
    """Offsets and strides of every field for given dimension sizes.

    `table` is an int32 array (fields, 3): offset, stride of the first and of the second index;
    the last index always has stride 1. `places` has start, end and shape of each field in cells;
    `words` is the length of a row in 64-bit words.
    """

    def __init__(self, schema: Schema, sizes: Mapping[str, int]) -> None:
        self.schema = schema
        self.sizes = dict(sizes)
        # One line more, for where the fields end.
        self.table = np.zeros((len(schema.fields) + 1, _MAX_DIMS), np.int32)
        self.places: dict[str, tuple[int, int, tuple[int, ...]]] = {}
        offset = 0
        for i, field in enumerate(schema.fields):
            shape = tuple(sizes[dim] for dim in field.dims)
            cells = math.prod(shape)
            self.places[field.name] = (offset, offset + cells, shape)
            self.table[i, 0] = offset
            for j in range(len(shape) - 1):
                self.table[i, 1 + j] = math.prod(shape[j + 1 :])
            offset += cells
        self.table[len(schema.fields), 0] = offset
        cells_per_word = 8 // schema.cell.itemsize
        self.words = -(-offset // cells_per_word)

    def new(self) -> Record:
        """A record of zeros that owns its row."""
        return Record(self, np.zeros(self.words, np.uint64))

    def read(self, row: Words) -> Record:
        """A record over an existing row (shape (words,)), without a copy."""
        if row.shape != (self.words,):
            raise ValueError(f"row has shape {row.shape}, the layout needs ({self.words},)")
        return Record(self, row)


class Record:
    """One row of cells with named fields; writing a field writes the row."""

    __slots__ = ("address", "cells", "layout", "layout_address", "row", "schema")

    def __init__(self, layout: Layout, row: Words) -> None:
        put = object.__setattr__
        put(self, "layout", layout)
        put(self, "schema", layout.schema)
        put(self, "row", row)
        put(self, "cells", row.view(layout.schema.cell))
        put(self, "address", row.ctypes.data)
        put(self, "layout_address", layout.table.ctypes.data)

    def __getattr__(self, name: str) -> Any:
        place = self.layout.places.get(name)
        if place is None:
            raise AttributeError(f"{self.schema.name} record has no field {name!r}")
        start, end, shape = place
        if not shape:
            return int(self.cells[start])
        cells = self.cells[start:end]
        return cells if len(shape) == 1 else cells.reshape(shape)

    def __setattr__(self, name: str, value: int) -> None:
        place = self.layout.places.get(name)
        if place is None or place[2]:
            raise AttributeError(f"{self.schema.name} record has no single number {name!r}")
        self.cells[place[0]] = value

    def clear(self) -> None:
        """Zero every field but those that last."""
        self.cells[: self.layout.table[self.schema.first_lasting, 0]] = 0

    def copy(self) -> Record:
        """A record with the same content and a row of its own."""
        return Record(self.layout, self.row.copy())


class RecordType(types.Type):
    """Numba's type of a `Record`: two pointers, to the cells and to the layout table."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        super().__init__(name=f"Record({schema})")


class FieldType(types.Type):
    """Numba's type of a field with dimensions: the record's pointers; the field is in the type."""

    def __init__(self, schema: str, index: int) -> None:
        self.schema = schema
        self.index = index
        super().__init__(name=f"Field({schema}.{_SCHEMAS[schema].fields[index].name})")


class _PointersModel(models.StructModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        members = [("cells", types.voidptr), ("layout", types.voidptr)]
        super().__init__(dmm, fe_type, members)


register_model(RecordType)(_PointersModel)
register_model(FieldType)(_PointersModel)


@typeof_impl.register(Record)
def _typeof_record(value: Record, _context: Any) -> RecordType:
    return _record_type(value.schema.name)


@cache
def _record_type(schema: str) -> RecordType:
    """Numba looks for a type at every call from Python, and making one takes it long."""
    return RecordType(schema)


@unbox(RecordType)
def _unbox_record(typ: Any, obj: Any, c: Any) -> NativeValue:
    pointers = cgutils.create_struct_proxy(typ)(c.context, c.builder)
    for member, attribute in (("cells", "address"), ("layout", "layout_address")):
        number = c.pyapi.object_getattr_string(obj, attribute)
        setattr(pointers, member, c.pyapi.long_as_voidptr(number))
        c.pyapi.decref(number)
    return NativeValue(pointers._getvalue())


@infer_getattr
class _RecordAttributes(AttributeTemplate):
    key = RecordType

    def generic_resolve(self, typ: RecordType, attr: str) -> Any:  # type: ignore[override]
        schema = _SCHEMAS[typ.schema]
        index = schema.index.get(attr)
        if index is None:
            return None
        return FieldType(typ.schema, index) if schema.fields[index].dims else types.int64


def _cell_pointer(
    context: Any, builder: Any, typ: Any, value: Any, field: int | None, indices: tuple[Any, ...]
) -> Any:
    """Address of one cell, of the first one where `field` is None.

    Layout entries never change, so their loads are marked invariant.
    """
    pointers = cgutils.create_struct_proxy(typ)(context, builder, value=value)
    table = builder.bitcast(pointers.layout, ir.IntType(32).as_pointer())
    word = ir.IntType(64)
    line = 0 if field is None else _MAX_DIMS * field

    def entry(k: int) -> Any:
        where = builder.gep(table, [ir.Constant(word, line + k)])
        load = builder.load(where)
        load.set_metadata("invariant.load", builder.module.add_metadata([]))
        return builder.sext(load, word)

    position = ir.Constant(word, 0) if field is None else entry(0)
    for k, index in enumerate(indices):
        last = k == len(indices) - 1
        step = index if last else builder.mul(index, entry(1 + k), flags=("nsw",))
        position = builder.add(position, step, flags=("nsw",))
    cell = ir.IntType(8 * _SCHEMAS[typ.schema].cell.itemsize)
    cells = builder.bitcast(pointers.cells, cell.as_pointer())
    return builder.gep(cells, [position])


@lower_getattr_generic(RecordType)
def _get_attribute(context: Any, builder: Any, typ: Any, value: Any, attr: str) -> Any:
    schema = _SCHEMAS[typ.schema]
    index = schema.index[attr]
    if schema.fields[index].dims:
        return value
    where = _cell_pointer(context, builder, typ, value, index, ())
    return builder.sext(builder.load(where), ir.IntType(64))


@lower_setattr_generic(RecordType)
def _set_attribute(context: Any, builder: Any, sig: Any, args: Any, attr: str) -> Any:
    typ, value_type = sig.args
    target, value = args
    number = context.cast(builder, value, value_type, types.int64)
    index = _SCHEMAS[typ.schema].index[attr]
    where = _cell_pointer(context, builder, typ, target, index, ())
    builder.store(builder.trunc(number, where.type.pointee), where)
    return context.get_dummy_value()


def _index_types(typ: Any, index: Any) -> Any:
    """Types of the indices, or None where they do not fit the field."""
    dims = len(_SCHEMAS[typ.schema].fields[typ.index].dims)
    parts: tuple[Any, ...] = (index,)
    if isinstance(index, types.BaseTuple):
        parts = tuple(index.types)  # type: ignore[attr-defined]
    whole = (types.Integer, types.IntEnumMember, types.Boolean)
    if len(parts) != dims or not all(isinstance(part, whole) for part in parts):
        return None
    return types.int64 if dims == 1 else types.UniTuple(types.int64, dims)


@infer_global(operator.getitem)
class _GetCell(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        if len(args) == 2 and isinstance(args[0], FieldType):
            index = _index_types(args[0], args[1])
            if index is not None:
                return signature(types.int64, args[0], index)
        return None


@infer_global(operator.setitem)
class _SetCell(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        if len(args) == 3 and isinstance(args[0], FieldType):
            index = _index_types(args[0], args[1])
            if index is not None:
                return signature(types.none, args[0], index, types.int64)
        return None


def _indices(builder: Any, index_type: Any, index: Any) -> tuple[Any, ...]:
    if isinstance(index_type, types.BaseTuple):
        return tuple(cgutils.unpack_tuple(builder, index))
    return (index,)


@lower_builtin(operator.getitem, FieldType, types.Integer)
@lower_builtin(operator.getitem, FieldType, types.BaseTuple)
def _get_cell(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    typ = sig.args[0]
    indices = _indices(builder, sig.args[1], args[1])
    where = _cell_pointer(context, builder, typ, args[0], typ.index, indices)
    return builder.sext(builder.load(where), ir.IntType(64))


@lower_builtin(operator.setitem, FieldType, types.Integer, types.Integer)
@lower_builtin(operator.setitem, FieldType, types.BaseTuple, types.Integer)
def _set_cell(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    typ = sig.args[0]
    indices = _indices(builder, sig.args[1], args[1])
    where = _cell_pointer(context, builder, typ, args[0], typ.index, indices)
    builder.store(builder.trunc(args[2], where.type.pointee), where)
    return context.get_dummy_value()


@intrinsic
def _at_compiled(typingctx: Any, record: Any, rows: Any, i: Any) -> Any:
    """The record of row `i` of `rows` (uint64, (n, words), C order), laid out like `record`."""
    if not isinstance(record, RecordType) or not isinstance(rows, types.Array):
        return None

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array = context.make_array(sig.args[1])(context, builder, args[1])
        words = builder.extract_value(array.shape, 1)
        start = builder.gep(array.data, [builder.mul(args[2], words)])
        pointers = cgutils.create_struct_proxy(record)(context, builder, value=args[0])
        pointers.cells = builder.bitcast(start, pointers.cells.type)
        return pointers._getvalue()

    return record(record, rows, types.int64), codegen


def at(record: Record, rows: Words, i: int) -> Record:
    """The record over row `i` of `rows` (uint64, (n, words), C order), laid out like `record`."""
    found: Record = record.layout.read(rows[i])
    return found


@overload(at)
def _at_overload(record: Any, rows: Any, i: Any) -> Any:
    def compiled(record: Any, rows: Any, i: Any) -> Any:
        return _at_compiled(record, rows, i)  # type: ignore[call-arg]

    return compiled


@intrinsic
def _clear_compiled(typingctx: Any, record: Any) -> Any:
    """Zero the cells before the first field that lasts."""
    if not isinstance(record, RecordType):
        return None

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        schema = _SCHEMAS[record.schema]
        first = _cell_pointer(context, builder, record, args[0], None, ())
        end = _cell_pointer(context, builder, record, args[0], schema.first_lasting, ())
        word = ir.IntType(64)
        size = builder.sub(builder.ptrtoint(end, word), builder.ptrtoint(first, word))
        cgutils.memset(builder, first, size, 0)
        return context.get_dummy_value()

    return types.none(record), codegen


def clear(record: Record) -> None:
    """Zero every field of a record but those that last."""
    record.clear()


@overload(clear)
def _clear_overload(record: Any) -> Any:
    def compiled(record: Any) -> Any:
        return _clear_compiled(record)  # type: ignore[call-arg]

    return compiled
