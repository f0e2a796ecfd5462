/* Attributes of Python objects by their place in memory, as the interpreter itself reads them. */

#include <Python.h>
#include <structmember.h>
#include <stdint.h>
#include <string.h>

#include "wire.h"

#define OUT_BYTES 16384 /* taken at first for the replies of several requests */

/* Where the attribute behind a slot's descriptor stands in its objects; -1: it is no such slot. */
static Py_ssize_t slot_offset(PyObject *descriptor)
{
    if (!Py_IS_TYPE(descriptor, &PyMemberDescr_Type))
        return -1;
    PyMemberDef *member = ((PyMemberDescrObject *)descriptor)->d_member;
    return member->type == T_OBJECT_EX ? member->offset : -1;
}

/* Borrowed; NULL if it was never set. */
static inline PyObject *slot(PyObject *owner, Py_ssize_t offset)
{
    return *(PyObject **)((char *)owner + offset);
}

static inline void set_slot(PyObject *owner, Py_ssize_t offset, PyObject *value)
{
    PyObject **at = (PyObject **)((char *)owner + offset), *old = *at;
    Py_INCREF(value);
    *at = value;
    Py_XDECREF(old);
}

/* The same for an item that the list has. */
static inline void set_item(PyObject *list, Py_ssize_t index, PyObject *value)
{
    PyObject *old = PyList_GET_ITEM(list, index);
    Py_INCREF(value);
    PyList_SET_ITEM(list, index, value);
    Py_DECREF(old);
}

/* A tuple of a class without attributes of its own; its items are still to be put. */
static inline PyObject *new_tuple(PyTypeObject *kind, Py_ssize_t size)
{
    return kind->tp_alloc(kind, size);
}

static inline void put_item(PyObject *owner, Py_ssize_t index, PyObject *value)
{
    Py_INCREF(value);
    PyTuple_SET_ITEM(owner, index, value);
}

/* Less than, equal to, or greater than 0, as one bytes object comes before the other or not. */
static inline int order_of(PyObject *one, PyObject *other)
{
    Py_ssize_t size = PyBytes_GET_SIZE(one), length = PyBytes_GET_SIZE(other);
    const uint8_t *left = (const uint8_t *)PyBytes_AS_STRING(one);
    const uint8_t *right = (const uint8_t *)PyBytes_AS_STRING(other);
    if (size >= 8 && length >= 8) { /* mostly their beginning tells */
        uint64_t first = get64(left), second = get64(right);
        if (first != second)
            return first < second ? -1 : 1;
    }
    int found = memcmp(left, right, size < length ? size : length);
    return found ? found : (size > length) - (size < length);
}

/* Ask for what will be needed soon: an object's head, a frame. */
static inline void prefetch(PyObject *value)
{
    __builtin_prefetch(value);
}

static inline void prefetch_frame(PyObject *value)
{
    for (int line = 0; line < 6; line++)
        __builtin_prefetch((char *)value + 64 * line);
}

/* An int from 0 to 2^63 - 1; 0 if it is anything else. */
static inline int as_number(PyObject *value, uint64_t *number)
{
    if (value == NULL || !PyLong_CheckExact(value))
        return 0;
    int overflow;
    long long found = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow || found < 0)
        return 0;
    *number = (uint64_t)found;
    return 1;
}

/* Bytes that grow while replies are written to them. */

/* Return where `need` bytes can be written behind `used` ones; NULL and an error if there is no
 * memory. `exact`: nothing will follow. */
static uint8_t *room(PyObject **out, Py_ssize_t used, Py_ssize_t need, int exact)
{
    if (*out == NULL) {
        *out = PyBytes_FromStringAndSize(NULL, exact || need > OUT_BYTES ? need : OUT_BYTES);
        if (*out == NULL)
            return NULL;
    } else if (used + need > PyBytes_GET_SIZE(*out)) {
        if (_PyBytes_Resize(out, 2 * (used + need)) < 0)
            return NULL;
    }
    return (uint8_t *)PyBytes_AS_STRING(*out) + used;
}

/* Hand them over, `used` bytes long. */
static PyObject *take(PyObject **out, Py_ssize_t used)
{
    if (PyBytes_GET_SIZE(*out) != used)
        _PyBytes_Resize(out, used);
    PyObject *taken = *out;
    *out = NULL;
    return taken;
}
