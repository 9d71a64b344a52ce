"""Documents that tests add: rules in English, Chinese and Russian, with chapters and sentences to find."""

ENGLISH = """\
# Safety rules

## 1 General

These rules are for everybody who works on electrical installations.

## 2 Isolation

### 2.1 Switching off

Before work begins, the circuit is switched off at the main switch, and the switch is locked with a padlock.

### 2.2 Distances

| voltage, kV | distance, m |
|---|---|
| 10 | 0.7 |
| 110 | 1.5 |
| 220 | 3.0 |

## 3 Earthing

The earthing cable is attached to the ground first and to the line last.

- Wear insulating gloves.
- Use an insulating rod.
"""

CHINESE = """\
# 电力安全工作规程

## 第一章 总则

本规程适用于所有从事电气作业的人员。

## 第二章 倒闸操作

### 2.1 操作票

倒闸操作必须由两人执行,其中一人对设备较为熟悉者作监护。操作前应先核对设备名称、编号和位置。

## 第三章 接地

装设接地线必须先接接地端,后接导体端,接地线必须接触良好。
"""

RUSSIAN = """\
# Правила охраны труда

## 1 Общие положения

Настоящие правила распространяются на всех работников организации.

## 2 Работы на высоте

### 2.1 Страховка

Работник, поднимающийся на опору, обязан закрепиться предохранительным поясом до начала работы.

## 3 Пожарная безопасность

Огнетушители проверяют один раз в год, о чём делают запись в журнале.
"""
