"""Loops whose iterations run side by side, on the threads of Numba's threading layer.

``parallel_for(worker, count, chunk, (a, b, c))`` calls ``worker(i, a, b, c)`` for all i < count. A free
thread takes the next `chunk` of them, so that one beside a busy process holds nobody up. Numba's own
``prange`` gives every thread an equal share, and makes a function out of the body of the loop, which takes
half a second to compile for each loop. Here the body is a device function.

Which thread runs an iteration is not defined: none may write what another one reads or writes. `chunk` is
positive, and a worker starts no loop of this kind itself.
"""

from __future__ import annotations

from llvmlite import ir

from dpmd_fast.kernels.borrow import uncounted
from dpmd_fast.kernels.jit import JIT_DISABLED
from dpmd_fast.kernels.late import cgutils, intrinsic, types
from dpmd_fast.kernels.layer import start_layer

_I32, _I64, _VOID = ir.IntType(32), ir.IntType(64), ir.VoidType()
_BYTES = ir.IntType(8).as_pointer()
# what the layer calls: it hands over arrays of arguments, sizes and steps, which are not used, and a pointer
_BODY = ir.FunctionType(_VOID, [_BYTES.as_pointer(), _I64.as_pointer(), _I64.as_pointer(), _BYTES])
_LOOP = ir.FunctionType(_VOID, [_BYTES] * 5 + [_I64, _I64, _I32])
_NEXT, _COUNT, _CHUNK, _FAILED, _ARGUMENTS = range(5)  # what the threads share


@intrinsic
def _parallel_for(typingctx, worker, count, chunk, arguments):
    called = typingctx.resolve_function_type(worker, (types.int64, *map(types.unliteral, arguments)), {})
    sig = types.void(worker, types.int64, types.int64, arguments)

    def codegen(context, builder, signature, args):
        start_layer()  # makes the functions of the layer known, and again when this code comes from a cache
        context.active_code_library._reload_init.add(start_layer)
        _, count, chunk, values = args
        kind = ir.LiteralStructType([_I64, _I64, _I64, _I32, values.type])
        shared = cgutils.alloca_once(builder, kind)
        contents = (_I64(0), count, chunk, _I32(0), values)
        for place, value in enumerate(contents):
            builder.store(value, cgutils.gep_inbounds(builder, shared, 0, place))
        body = _emit_body(context, builder.module, worker.dispatcher.overloads[called.args], arguments, kind)
        _emit_loop(builder, body, builder.bitcast(shared, _BYTES), count, chunk)
        failed = builder.load(cgutils.gep_inbounds(builder, shared, 0, _FAILED))
        with builder.if_then(builder.icmp_signed("!=", failed, _I32(0)), likely=False):
            # This leaves the kernel without giving up its references to the arguments: they leak if one is
            # an array that the kernel has made itself, so Python makes the arrays that workers fill.
            message = "a thread of a parallel loop failed, most likely for lack of memory"
            context.call_conv.return_user_exc(builder, MemoryError, (message,))
        return context.get_dummy_value()

    return sig, codegen


def _emit_body(context, module, compiled, arguments, kind):
    """Emit the function that each thread runs: iterations, as long as there are any."""
    body = ir.Function(module, _BODY, name=module.get_unique_name("parallel.body"))
    body.linkage = "internal"
    builder = ir.IRBuilder(body.append_basic_block("entry"))
    shared = builder.bitcast(body.args[3], kind.as_pointer())
    place = [cgutils.gep_inbounds(builder, shared, 0, field) for field in range(len(kind))]
    count, chunk = builder.load(place[_COUNT]), builder.load(place[_CHUNK])
    # the caller keeps the arrays until all threads are done
    values = uncounted(context, builder, arguments, builder.load(place[_ARGUMENTS]))
    context.active_code_library.add_linking_library(compiled.library)
    function = context.declare_function(module, compiled.fndesc)
    take, run, done = (builder.append_basic_block(name) for name in ("take", "run", "done"))
    builder.branch(take)
    builder.position_at_end(take)
    first = builder.atomic_rmw("add", place[_NEXT], chunk, "monotonic")
    builder.cbranch(builder.icmp_signed("<", first, count), run, done)
    builder.position_at_end(run)
    end = builder.add(first, chunk)
    end = builder.select(builder.icmp_signed("<", end, count), end, count)
    with cgutils.for_range_slice(builder, first, end, _I64(1), intp=_I64) as (i, _):
        signature = compiled.signature
        given = [i, *cgutils.unpack_tuple(builder, values)]
        status, _ = context.call_conv.call_function(
            builder, function, signature.return_type, signature.args, given
        )
        with builder.if_then(status.is_error, likely=False):
            builder.atomic_rmw("xchg", place[_FAILED], _I32(1), "monotonic")
            builder.atomic_rmw("xchg", place[_NEXT], count, "monotonic")  # the others need not begin
    builder.branch(take)
    builder.position_at_end(done)
    builder.ret_void()
    return body


def _emit_loop(builder, body, shared, count, chunk):
    """Emit the call of a body: by this thread if one is enough, else by threads of the layer."""
    module = builder.module
    allowed = cgutils.get_or_insert_function(module, ir.FunctionType(_I32, []), "get_num_threads")
    layer = cgutils.get_or_insert_function(module, _LOOP, "numba_parallel_for")
    parts = builder.sdiv(builder.add(count, builder.sub(chunk, _I64(1))), chunk)
    threads = builder.sext(builder.call(allowed, []), _I64)
    threads = builder.select(builder.icmp_signed("<", parts, threads), parts, threads)
    room = cgutils.alloca_once(builder, _I64)  # the size of the loop; no steps, no arrays
    builder.store(threads, room)
    with builder.if_else(builder.icmp_signed(">", threads, _I64(1))) as (many, one):
        with many:
            nothing = _BYTES(None)
            size = builder.bitcast(room, _BYTES)
            given = [builder.bitcast(body, _BYTES), nothing, size, nothing, shared, _I64(0), _I64(0)]
            builder.call(layer, [*given, builder.trunc(threads, _I32)])
        with one:
            nothing = (kind(None) for kind in _BODY.args[:3])
            builder.call(body, [*nothing, shared])


def _plain_parallel_for(worker, count, chunk, arguments):
    for i in range(count):
        worker(i, *arguments)


parallel_for = _plain_parallel_for if JIT_DISABLED else _parallel_for
