"""A calculator as a tool: ``<calculate>(3 + 4) * 2</calculate>`` gives 14."""

import ast
import operator

from mempo.agent.tools import BadArgument
from mempo.trajectory import Task

LIMIT = 10**15  # no number on the way is larger
OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


def calculate(argument: str, task: Task) -> str:
    try:
        if len(argument) > 200:
            raise OverflowError
        return f"{value(ast.parse(argument, mode='eval').body):.15g}"
    except (ArithmeticError, SyntaxError, ValueError):
        raise BadArgument("Write numbers up to 10**15, + - * / % **, and brackets.") from None


def value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            found: float = number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            found = -value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            apply, a, b = OPERATORS[type(op)], value(left), value(right)
            if isinstance(op, ast.Pow) and abs(b) > 64:
                raise OverflowError
            found = apply(a, b)
        case _:
            raise SyntaxError
    if isinstance(found, complex) or abs(found) > LIMIT:
        raise OverflowError
    return found
